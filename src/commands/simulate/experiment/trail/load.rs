//! Latency and TTFT against the arrival rate.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::{Sjf, Trail};

use super::super::curves::{LATENCY, MEDIAN_LATENCY, MEDIAN_TTFT, TTFT, against_x, at};
use super::super::{Experiment, Finding, Measured, Trial, ratios};
use super::{paper, poisson, scenario, trail_plus, trial};
use crate::commands::simulate::figures::Figures;
use crate::commands::simulate::scenario::Pace;
use crate::plot::Panel;

/// Requests of a run.
const REQUESTS: usize = 10_000;

/// Rates as multiples of the capacity.
const LOADS: [f64; 6] = [0.8, 0.9, 1.0, 1.1, 1.3, 1.5];

/// The release's rates, requests per second.
const RATES: [f64; 3] = [10.0, 20.0, 30.0];

/// The release's number of sequences and of requests.
const RELEASE_SEQUENCES: u32 = 48;
const RELEASE_REQUESTS: usize = 1000;

type Policies<'a> = &'a [(&'a str, PolicyKind)];

fn sjf() -> (&'static str, PolicyKind) {
    ("sjf", PolicyKind::Sjf(Sjf::PAPER))
}

fn trail_bert() -> (&'static str, PolicyKind) {
    ("trail-bert", "trail-bert".parse().expect("a policy"))
}

/// All policies at all loads.
fn by_load(model: &str, policies: Policies) -> Vec<Trial> {
    let mut grid = Vec::new();
    for load in LOADS {
        for &(label, policy) in policies {
            grid.push(trial(label, load, scenario(model, policy, poisson(load), REQUESTS)));
        }
    }
    grid
}

/// FCFS's number over that of `label` at each of `xs`.
fn gains(
    measured: &[Measured],
    label: &str,
    xs: &[f64],
    (quantity, paper, of): (&str, &str, fn(&Figures) -> f64),
) -> Vec<Finding> {
    let finding = |&x: &f64| {
        let ours = ratios(at(measured, "fcfs", x), at(measured, label, x), of);
        Finding::new(format!("{quantity}, fcfs / {label} at {x}"), paper, ours)
    };
    xs.iter().map(finding).collect()
}

fn panels(measured: &[Measured], x: &str) -> Vec<Panel> {
    let panel = |caption, of| Panel::lines([x, caption], against_x(measured, "", of));
    vec![
        panel("mean latency, s", LATENCY),
        panel("median latency, s", MEDIAN_LATENCY),
        panel("mean time to first token, s", TTFT),
        panel("median time to first token, s", MEDIAN_TTFT),
    ]
}

const X: &str = "arrival rate, multiple of the capacity";

/// Figure 6: latency and TTFT against the rate.
pub const FIG6: Experiment = Experiment {
    name: "trail-fig6",
    source: "TRAIL, figure 6: latency and TTFT against the request rate",
    claim: "TRAIL has 1.66-2.01x lower mean latency and 1.76-24.07x lower mean TTFT than vLLM; SJF \
            by the prompt gains little; TRAIL-BERT is between; TRAIL+ is best",
    conditions: "10,000 requests a run of Alpaca's lengths, Llama-3-8B on an \
                 A100-80GB (roofline), 256 sequences, 512 tokens a step, predictions at the \
                 release's error; rates are multiples of the simulated capacity, as the paper's \
                 are those of another engine; 'trail (paper)' is TRAIL without options, 'trail' \
                 the default with its tail bound",
    grid: || {
        by_load(
            "a100-80g:8b",
            &[
                ("fcfs", PolicyKind::Fcfs),
                sjf(),
                trail_bert(),
                ("trail (paper)", PolicyKind::Trail(Trail::PAPER)),
                ("trail", PolicyKind::Trail(Trail::default())),
                ("trail+", trail_plus()),
            ],
        )
    },
    read: |measured| {
        let xs = [0.9, 1.0, 1.1, 1.3, 1.5];
        let latency = |paper| ("mean latency", paper, LATENCY);
        let ttft = |paper| ("mean TTFT", paper, TTFT);
        let mut findings = gains(measured, "trail (paper)", &xs, latency("1.66-2.01"));
        findings.extend(gains(measured, "trail (paper)", &xs, ttft("1.76-24.07")));
        findings.extend(gains(measured, "trail", &xs, latency("not in the paper")));
        findings.extend(gains(measured, "trail-bert", &xs, latency("below TRAIL's")));
        findings.extend(gains(measured, "sjf", &xs, latency("about 1")));
        findings.extend(gains(measured, "trail+", &xs, latency("above TRAIL's")));
        findings
    },
    panels: |measured| panels(measured, X),
};

/// The benchmark of the released code.
pub const RELEASE: Experiment = Experiment {
    name: "trail-release",
    source: "TRAIL, benchmark of the released code: 48 sequences, 1,000 requests, three rates",
    claim: "no numbers published; the paper's 1.66-2.01x mean latency and 1.76-24.07x mean TTFT",
    conditions: "1,000 requests of Alpaca's lengths at 10, 20 and 30 requests/s, 48 sequences, 512 \
                 tokens a step, Llama-3-8B on an A100-80GB (roofline), predictions at the \
                 release's error",
    grid: || {
        let policies = [
            ("fcfs", PolicyKind::Fcfs),
            sjf(),
            ("trail (paper)", paper(0.8)),
            ("trail", PolicyKind::Trail(Trail::default())),
            ("trail+", trail_plus()),
        ];
        let mut grid = Vec::new();
        for rate in RATES {
            for (label, policy) in policies {
                let pace = Pace::Rate { rate, gamma: false };
                let mut scenario = scenario("a100-80g:8b", policy, pace, RELEASE_REQUESTS);
                scenario.simulation.scheduler.max_running = RELEASE_SEQUENCES;
                grid.push(trial(label, rate, scenario));
            }
        }
        grid
    },
    read: |measured| {
        let mut findings = Vec::new();
        for label in ["sjf", "trail (paper)", "trail", "trail+"] {
            let latency = ("mean latency", "1.66-2.01", LATENCY);
            findings.extend(gains(measured, label, &RATES, latency));
            findings.extend(gains(measured, label, &RATES, ("mean TTFT", "1.76-24.07", TTFT)));
        }
        findings
    },
    panels: |measured| panels(measured, "requests per second"),
};

/// Figure 11: two devices.
pub const FIG11: Experiment = Experiment {
    name: "trail-fig11",
    source: "TRAIL, figure 11: Llama-3-8B on two devices by tensor parallelism",
    claim: "TRAIL continues to perform effectively: mean and median latency below vLLM's",
    conditions: "10,000 requests a run of Alpaca's lengths, Llama-3-8B on two A100-80GB (half the \
                 weights and KV each, 10 us an all-reduce, assumed), predictions at the release's \
                 error; the paper prints no values",
    grid: || {
        by_load(
            "a100-80g:8b:tp2",
            &[
                ("fcfs", PolicyKind::Fcfs),
                sjf(),
                trail_bert(),
                ("trail (paper)", PolicyKind::Trail(Trail::PAPER)),
            ],
        )
    },
    read: |measured| {
        let xs = [0.9, 1.0, 1.1, 1.3, 1.5];
        let mut findings = Vec::new();
        for label in ["trail (paper)", "trail-bert"] {
            let mean = ("mean latency", "above 1", LATENCY);
            findings.extend(gains(measured, label, &xs, mean));
            let median = ("median latency", "above 1", MEDIAN_LATENCY);
            findings.extend(gains(measured, label, &xs, median));
        }
        findings
    },
    panels: |measured| panels(measured, X)[..2].to_vec(),
};

/// Figure 12: a larger model on two devices.
pub const FIG12: Experiment = Experiment {
    name: "trail-fig12",
    source: "TRAIL, figure 12: Vicuna-13B on two devices, TRAIL+",
    claim: "TRAIL+ (perfect predictions) is below vLLM in mean and median latency",
    conditions: "10,000 requests a run (the paper draws them from 1,000 prompts) of the Alpaca \
                 lengths of Llama-3-8B (Vicuna's are not published), a 13B shape with multi-head \
                 attention on two A100-80GB (10 us an all-reduce, assumed); the paper prints no \
                 values",
    grid: || {
        let policies = [("fcfs", PolicyKind::Fcfs), ("trail+", trail_plus())];
        by_load("a100-80g:13b:tp2", &policies)
    },
    read: |measured| {
        let xs = [0.9, 1.0, 1.1, 1.3, 1.5];
        let mean = ("mean latency", "above 1", LATENCY);
        let mut findings = gains(measured, "trail+", &xs, mean);
        let median = ("median latency", "above 1", MEDIAN_LATENCY);
        findings.extend(gains(measured, "trail+", &xs, median));
        findings
    },
    panels: |measured| panels(measured, X)[..2].to_vec(),
};
