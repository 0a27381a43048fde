//! Latency and waiting time against the arrival rate.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::Mlfq;

use super::super::curves::{TOKEN_LATENCY, against_x, at};
use super::super::{Experiment, Finding, Measured, Trial, ratios};
use super::{CASES, Case, LARGE, LMSYS, RANKING, SHAREGPT, Set, policy, rank, scenario, trial};
use crate::commands::simulate::figures::Figures;
use crate::commands::simulate::scenario::{Pace, Scenario};
use crate::plot::Panel;

/// Arrival rates, requests per second: the paper's up to 64, and two more, as the roofline is about
/// four times as fast as the paper's engine (`ltr-table1`). Time of arrivals in seconds.
const RATES: [f64; 8] = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
const ARRIVALS_S: f64 = 60.0;

fn at_rate(model: &str, set: &Set, (policy, tau): (PolicyKind, f64), rate: f64) -> Scenario {
    let pace = Pace::Rate { rate, gamma: false };
    let requests = (ARRIVALS_S * rate) as usize;
    scenario(model, (set.dataset, rank(tau)), policy, pace, requests)
}

fn five_schedulers(Case { name: case, model, set }: &Case) -> Vec<Trial> {
    // The scripts name the quantum in a form that is not read: it stays at its default of 10 ms.
    let mlfq = Mlfq { growth: set.mlfq_growth, starvation_s: 0.0, ..Mlfq::default() };
    let policies = [
        ("fcfs", PolicyKind::Fcfs, set.ranking_tau),
        ("mlfq", PolicyKind::Mlfq(mlfq), set.ranking_tau),
        ("po", policy("po"), set.stated_tau),
        ("classification", policy("classification"), set.ranking_tau),
        ("ranking", policy(RANKING), set.ranking_tau),
    ];
    let mut grid = Vec::new();
    for rate in RATES {
        for (name, policy, tau) in policies {
            let scenario = at_rate(model, set, (policy, tau), rate);
            grid.push(trial(format!("{case} {name}"), rate, scenario));
        }
    }
    grid
}

/// A panel of the labels that begin with `name`.
fn panel(measured: &[Measured], name: &str, caption: &str, of: fn(&Figures) -> f64) -> Panel {
    let curves = against_x(measured, &format!("{name} "), of);
    Panel::lines(["requests per second", &format!("{caption} ({name})")], curves)
}

/// One panel for each data set.
fn panels(measured: &[Measured], caption: &str, of: fn(&Figures) -> f64) -> Vec<Panel> {
    [SHAREGPT, LMSYS].map(|set| panel(measured, set.dataset.name, caption, of)).into()
}

/// Figure 3: latency against the rate.
pub const FIG3: Experiment = Experiment {
    name: "ltr-fig3",
    source: "Learning to Rank, figure 3: latency against the arrival rate",
    claim: "at 64 requests/s the ranking has up to 6.9x lower mean latency than FCFS and 1.5-1.9x \
            lower than PO",
    conditions: "arrivals of 60 s at 2 to 256 requests/s (the paper ends at 64; its engine takes \
                 four times as long for a burst), Llama-3-8B on an A100-80GB and 70B on eight \
                 (roofline), 256 sequences, 768 tokens a step, victims swapped; assumed log-normal \
                 lengths, the same for both models; predictors of the printed rank correlations, \
                 without their cost; PO without the 15 tokens that it adds; no starvation control",
    grid: || CASES.iter().flat_map(five_schedulers).collect(),
    read: |measured| {
        let mut findings = Vec::new();
        for Case { name, .. } in CASES {
            for rate in [32.0, 64.0, 128.0, 256.0] {
                let of = |policy| at(measured, &format!("{name} {policy}"), rate);
                let ranking = of("ranking");
                for (policy, paper) in [
                    ("fcfs", "up to 6.9 at 64"),
                    ("po", "1.5-1.9 at 64"),
                    ("mlfq", "above 1"),
                    ("classification", "above 1"),
                ] {
                    let quantity = format!("{name} at {rate}/s: s/token, {policy} / ranking");
                    let ours = ratios(of(policy), ranking, TOKEN_LATENCY);
                    findings.push(Finding::new(quantity, paper, ours));
                }
            }
        }
        findings
    },
    panels: |measured| {
        CASES.map(|case| panel(measured, case.name, "latency per token, s", TOKEN_LATENCY)).into()
    },
};

/// Number of rates of Figures 4 and 5: the paper's 2 to 32, and 64 and 128.
const CONTROL_RATES: usize = 7;

/// Curves of Figures 4 and 5.
const CONTROL: [(&str, &str); 3] =
    [("fcfs", "fcfs"), ("uncontrolled", RANKING), ("controlled", "ltr:200:10")];

fn starvation() -> Vec<Trial> {
    let mut grid = Vec::new();
    for set in [SHAREGPT, LMSYS] {
        for &rate in &RATES[..CONTROL_RATES] {
            for (name, text) in CONTROL {
                let label = format!("{} {name}", set.dataset.name);
                let with = (policy(text), set.ranking_tau);
                grid.push(trial(label, rate, at_rate(LARGE, &set, with, rate)));
            }
        }
    }
    grid
}

const STARVATION_CONDITIONS: &str = "arrivals of 60 s at 2 to 128 requests/s (the paper ends at \
                                     32), Llama-3-70B on eight A100-80GB (roofline), 256 \
                                     sequences, 768 tokens a step, victims swapped; assumed \
                                     log-normal lengths; threshold of 200 steps and quantum of 10, \
                                     as in the scripts";

const WAIT: fn(&Figures) -> f64 = |figures| figures.max_waiting_time_s.mean;

/// A number without the control over the one with it, or the inverse.
fn effect(measured: &[Measured], what: &str, paper: &str, is_wait: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for set in [SHAREGPT, LMSYS] {
        for &rate in &RATES[..CONTROL_RATES] {
            let name = set.dataset.name;
            let of = |policy| at(measured, &format!("{name} {policy}"), rate);
            let (without, with) = (of("uncontrolled"), of("controlled"));
            let ours = match is_wait {
                true => ratios(without, with, WAIT),
                false => ratios(with, without, TOKEN_LATENCY),
            };
            findings.push(Finding::new(format!("{name} at {rate}/s: {what}"), paper, ours));
        }
    }
    findings
}

/// Figure 4: waiting time with and without the control of starvation.
pub const FIG4: Experiment = Experiment {
    name: "ltr-fig4",
    source: "Learning to Rank, figure 4: mean max_waiting_time",
    claim: "starvation control lowers the mean max_waiting_time by up to 3.4x (LMSYS) and 3.3x \
            (ShareGPT)",
    conditions: STARVATION_CONDITIONS,
    grid: starvation,
    read: |measured| {
        effect(measured, "max_waiting_time, uncontrolled / controlled", "up to 3.3-3.4", true)
    },
    panels: |measured| panels(measured, "mean max_waiting_time, s", WAIT),
};

/// Figure 5: its cost in latency.
pub const FIG5: Experiment = Experiment {
    name: "ltr-fig5",
    source: "Learning to Rank, figure 5: latency with and without starvation control",
    claim: "starvation control costs less than 10 % latency in most cases, less than 30 % in all",
    conditions: STARVATION_CONDITIONS,
    grid: starvation,
    read: |measured| {
        effect(measured, "s/token, controlled / uncontrolled", "below 1.1, at most 1.3", false)
    },
    panels: |measured| panels(measured, "mean latency per token, s", TOKEN_LATENCY),
};
