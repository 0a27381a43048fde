//! All requests at once.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::Mlfq;
use trail_simulator::{JobOutcome, SimulationRun};

use super::super::curves::{TOKEN_LATENCY, distributions, of_requests, of_runs};
use super::super::{Experiment, Finding, Measured, Trial, labelled, ratios};
use super::{CASES, Case, RANKING, SHAREGPT, SMALL, policy, rank, scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::{Curve, Panel};

/// Requests of the bursts of Figures 2a and 6, and of Table 1.
const SMALL_BURST: usize = 1000;
const BURST: usize = 2000;

/// Table 1 as printed: mean and 90th percentile of the latency per token, seconds; ratio of FCFS's
/// mean to that of the others.
const SCHEDULERS: [&str; 5] = ["fcfs", "mlfq", "po", "classification", "ranking"];
const PRINTED: [([[&str; 5]; 2], [&str; 4]); 4] = [
    (
        [["1.15", "1.07", "1.35", "1.13", "0.56"], ["1.60", "1.57", "1.67", "1.51", "0.67"]],
        ["1.07", "0.85", "1.02", "2.05"],
    ),
    (
        [["1.73", "0.80", "0.75", "1.77", "0.38"], ["4.86", "1.56", "1.47", "4.98", "0.52"]],
        ["2.16", "2.31", "0.98", "4.55"],
    ),
    (
        [["1.44", "1.37", "1.04", "1.26", "0.78"], ["2.01", "1.89", "1.35", "1.73", "0.96"]],
        ["1.05", "1.38", "1.14", "1.85"],
    ),
    (
        [["2.17", "1.00", "0.95", "2.23", "0.54"], ["5.54", "1.91", "1.72", "5.72", "0.82"]],
        ["2.17", "2.28", "0.97", "4.02"],
    ),
];

fn burst(Case { name: case, model, set }: &Case) -> Vec<Trial> {
    let growth = set.mlfq_growth;
    let mlfq = Mlfq { quantum_s: 0.03, growth, starvation_s: 0.0, ..Mlfq::default() };
    let policies = [
        (PolicyKind::Fcfs, set.ranking_tau),
        (PolicyKind::Mlfq(mlfq), set.ranking_tau),
        (policy("po"), set.stated_tau),
        (policy("classification"), set.ranking_tau),
        (policy(RANKING), set.ranking_tau),
    ];
    let of = |(name, (policy, tau)): (&str, (PolicyKind, f64))| {
        let data = (set.dataset, rank(tau));
        let label = format!("{case} {name}");
        trial(label, 0.0, scenario(model, data, policy, Pace::Burst, BURST))
    };
    SCHEDULERS.into_iter().zip(policies).map(of).collect()
}

/// Table 1: a burst of 2,000 requests.
pub const TABLE1: Experiment = Experiment {
    name: "ltr-table1",
    source: "Learning to Rank, table 1: latency per token in a burst of 2,000 requests",
    claim: "the ranking has 2.1x (ShareGPT) and 4.6x (LMSYS) lower mean latency than FCFS; MLFQ and \
            PO gain on LMSYS alone, classification nowhere",
    conditions: "2,000 requests, Llama-3-8B on an A100-80GB and 70B on eight (roofline; the \
                 paper's engine has no CUDA graphs, so times are not comparable, ratios are), 256 \
                 sequences, 768 tokens a step, victims swapped; assumed log-normal lengths, the \
                 same for both models; predictors of the printed rank correlations, without their \
                 cost; PO without the 15 tokens that it adds; no starvation control, as in the \
                 scripts",
    grid: || CASES.iter().flat_map(burst).collect(),
    read: |measured| {
        let mut findings = Vec::new();
        for (Case { name: case, .. }, ([means, tails], gains)) in CASES.iter().zip(PRINTED) {
            for ((name, mean), tail) in SCHEDULERS.iter().zip(means).zip(tails) {
                let here = labelled(measured, &format!("{case} {name}"));
                let ours = here.each(TOKEN_LATENCY);
                findings.push(Finding::new(format!("{case} {name}: mean, s/token"), mean, ours));
                let ours = here.each(|figures| figures.latency_per_token_s.p90);
                findings.push(Finding::new(format!("{case} {name}: p90, s/token"), tail, ours));
            }
            let fcfs = labelled(measured, &format!("{case} fcfs"));
            for (name, gain) in SCHEDULERS[1..].iter().zip(gains) {
                let here = labelled(measured, &format!("{case} {name}"));
                let quantity = format!("{case}: mean, fcfs / {name}");
                findings.push(Finding::new(quantity, gain, ratios(fcfs, here, TOKEN_LATENCY)));
            }
        }
        findings
    },
    panels: |measured| {
        let of = |case: Case| {
            let curves = measured.iter().filter_map(|m| {
                let name = m.label.strip_prefix(case.name)?;
                let (_, run) = m.runs.first()?;
                let times = of_requests(run, |outcome| outcome.token_latency_s());
                Some(Curve::cumulative(name.trim(), times))
            });
            let caption = format!("latency per token, s ({})", case.name);
            Panel::cumulative([&caption, "requests answered, %"], curves.collect())
        };
        CASES.map(of).into()
    },
};

/// Figure 2a: head-of-line blocking.
pub const FIG2A: Experiment = Experiment {
    name: "ltr-fig2a",
    source: "Learning to Rank, figure 2a: head-of-line blocking in a burst of 1,000 requests",
    claim: "under FCFS short requests wait behind long ones; by length they do not (no values)",
    conditions: "1,000 requests of ShareGPT's assumed lengths, Llama-3-8B on an A100-80GB \
                 (roofline), 256 sequences, 768 tokens a step; ranking at tau = 0.55, exact at 1",
    grid: || {
        let of = |name: &str, text, tau| {
            let data = (SHAREGPT.dataset, rank(tau));
            trial(name, 0.0, scenario(SMALL, data, policy(text), Pace::Burst, SMALL_BURST))
        };
        vec![of("fcfs", "fcfs", 0.55), of("ranking", RANKING, 0.55), of("exact", RANKING, 1.0)]
    },
    read: |measured| {
        let share = |label| {
            labelled(measured, label).each(|figures| figures.ttft_s.mean / figures.latency_s.mean)
        };
        let gain =
            |label| ratios(labelled(measured, "fcfs"), labelled(measured, label), TOKEN_LATENCY);
        vec![
            Finding::new("fcfs: mean TTFT / mean latency", "not printed", share("fcfs")),
            Finding::new("exact: mean TTFT / mean latency", "not printed", share("exact")),
            Finding::new("s/token, fcfs / ranking", "above 1", gain("ranking")),
            Finding::new("s/token, fcfs / exact", "above 1", gain("exact")),
        ]
    },
    panels: |measured| {
        vec![Panel::cumulative(
            ["latency per token, s", "requests answered, %"],
            distributions(measured, |outcome| outcome.token_latency_s()),
        )]
    },
};

/// Base quanta of Figure 6, seconds: the paper's, and the same share of the whole run here (the
/// paper's takes 254 s, Table 4; ours 75 s).
const QUANTA: [(&str, f64); 2] = [("16 s", 16.0), ("4.7 s", 4.7)];

fn kept(run: &SimulationRun) -> impl Iterator<Item = &JobOutcome> {
    run.outcomes.iter().filter(|outcome| outcome.preemptions == 0)
}

fn longest_kept(run: &SimulationRun) -> f64 {
    kept(run).map(|outcome| f64::from(outcome.output_tokens)).fold(0.0, f64::max)
}

fn shortest_preempted(run: &SimulationRun) -> f64 {
    let preempted = run.outcomes.iter().filter(|outcome| outcome.preemptions > 0);
    preempted.map(|outcome| f64::from(outcome.output_tokens)).fold(f64::INFINITY, f64::min)
}

fn share_kept(run: &SimulationRun) -> f64 {
    kept(run).count() as f64 / run.outcomes.len().max(1) as f64
}

/// Figure 6: MLFQ.
pub const FIG6: Experiment = Experiment {
    name: "ltr-fig6",
    source: "Learning to Rank, figure 6: finish time by output length under MLFQ",
    claim: "blocks whose edges grow by the factor of the quanta; within a block length rises \
            linearly with time (shape only)",
    conditions: "1,000 requests of ShareGPT's assumed lengths, base quantum of 16 s, growth 2, 256 \
                 sequences, Llama-3-8B on an A100-80GB (roofline), which is faster than the \
                 paper's engine: 4.7 s are the same share of the run here as 16 s there",
    grid: || {
        let of = |(label, quantum_s)| {
            let mlfq = Mlfq { quantum_s, starvation_s: 0.0, ..Mlfq::default() };
            let data = (SHAREGPT.dataset, rank(1.0));
            let policy = PolicyKind::Mlfq(mlfq);
            trial(label, 0.0, scenario(SMALL, data, policy, Pace::Burst, SMALL_BURST))
        };
        QUANTA.map(of).into()
    },
    read: |measured| {
        let mut findings = Vec::new();
        for m in measured {
            let mut add = |what: &str, of: fn(&SimulationRun) -> f64| {
                let quantity = format!("{}: {what}", m.label);
                findings.push(Finding::new(quantity, "not printed", of_runs(m, of)));
            };
            add("longest answer never preempted, tokens", longest_kept);
            add("shortest answer preempted, tokens", shortest_preempted);
            add("share never preempted", share_kept);
        }
        findings
    },
    panels: |measured| {
        let panel = |m: &Measured| {
            let points = m.runs.first().map_or(Vec::new(), |(_, run)| {
                let finished = run.outcomes.iter();
                finished.map(|o| (o.latency_s, f64::from(o.output_tokens))).collect()
            });
            let curve = Curve { name: "requests".into(), points };
            let caption = format!("finish time, s (base quantum {})", m.label);
            Panel::dots([&caption, "output length, tokens"], vec![curve])
        };
        measured.iter().map(panel).collect()
    },
};
