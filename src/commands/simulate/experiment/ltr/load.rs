//! Latency and waiting time against the arrival rate.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::Mlfq;

use super::super::curves::{TOKEN_LATENCY, against_x, at};
use super::super::{Experiment, Finding, Measured, Trial, ratios};
use super::{LARGE, LMSYS, RANKING, SHAREGPT, SMALL, Set, policy, rank, scenario, trial};
use crate::commands::simulate::figures::Figures;
use crate::commands::simulate::scenario::{Pace, Scenario};
use crate::plot::Panel;

/// Arrival rates, requests per second, and the time of arrivals in seconds.
const RATES: [f64; 6] = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
const ARRIVALS_S: f64 = 60.0;

fn at_rate(model: &str, set: &Set, (policy, tau): (PolicyKind, f64), rate: f64) -> Scenario {
    let pace = Pace::Rate { rate, gamma: false };
    let requests = (ARRIVALS_S * rate) as usize;
    scenario(model, (set.dataset, rank(tau)), policy, pace, requests)
}

fn five_schedulers(set: &Set) -> Vec<Trial> {
    // The scripts name the quantum in a form that is not read: it stays at its default of 10 ms.
    let growth = if set.dataset.name == "sharegpt" { 10.0 } else { 2.0 };
    let mlfq = Mlfq { growth, starvation_s: 0.0, ..Mlfq::default() };
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
            let label = format!("{} {name}", set.dataset.name);
            grid.push(trial(label, rate, at_rate(SMALL, set, (policy, tau), rate)));
        }
    }
    grid
}

/// One panel for each data set.
fn panels(measured: &[Measured], caption: &str, of: fn(&Figures) -> f64) -> Vec<Panel> {
    let panel = |set: &Set| {
        let name = set.dataset.name;
        let caption = format!("{caption} ({name})");
        let curves = against_x(measured, &format!("{name} "), of);
        Panel::lines(["requests per second", &caption], curves)
    };
    vec![panel(&SHAREGPT), panel(&LMSYS)]
}

/// Figure 3: latency against the rate.
pub const FIG3: Experiment = Experiment {
    name: "ltr-fig3",
    source: "Learning to Rank, figure 3: latency against the arrival rate",
    claim: "at 64 requests/s the ranking has up to 6.9x lower mean latency than FCFS and 1.5-1.9x \
            lower than PO",
    conditions: "arrivals of 60 s at 2 to 64 requests/s, Llama-3-8B on an A100-80GB (roofline), 256 \
                 sequences, 768 tokens a step, victims swapped; assumed log-normal lengths; \
                 predictors of the printed rank correlations, without their cost; PO without the 15 \
                 tokens that it adds; no starvation control; the 70B panels are not run",
    grid: || five_schedulers(&SHAREGPT).into_iter().chain(five_schedulers(&LMSYS)).collect(),
    read: |measured| {
        let mut findings = Vec::new();
        for set in [SHAREGPT, LMSYS] {
            for rate in [16.0, 32.0, 64.0] {
                let name = set.dataset.name;
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
    panels: |measured| panels(measured, "mean latency per token, s", TOKEN_LATENCY),
};

/// Curves of Figures 4 and 5.
const CONTROL: [(&str, &str); 3] =
    [("fcfs", "fcfs"), ("uncontrolled", RANKING), ("controlled", "ltr:200:10")];

fn starvation() -> Vec<Trial> {
    let mut grid = Vec::new();
    for set in [SHAREGPT, LMSYS] {
        for &rate in &RATES[..5] {
            for (name, text) in CONTROL {
                let label = format!("{} {name}", set.dataset.name);
                let with = (policy(text), set.ranking_tau);
                grid.push(trial(label, rate, at_rate(LARGE, &set, with, rate)));
            }
        }
    }
    grid
}

const STARVATION_CONDITIONS: &str = "arrivals of 60 s at 2 to 32 requests/s, Llama-3-70B on two \
                                     H200 (roofline; the paper has eight A100), 256 sequences, 768 \
                                     tokens a step, victims swapped; assumed log-normal lengths; \
                                     threshold of 200 steps and quantum of 10, as in the scripts";

const WAIT: fn(&Figures) -> f64 = |figures| figures.max_waiting_time_s.mean;

/// A number without the control over the one with it, or the inverse.
fn effect(measured: &[Measured], what: &str, paper: &str, is_wait: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for set in [SHAREGPT, LMSYS] {
        for &rate in &RATES[..5] {
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
