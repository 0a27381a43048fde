//! Figures 7 and 8: rates.

use super::{
    E2EL, Experiment, Finding, Measured, Pace, TTFT, Time, Trial, policies, quantile_panels,
    quantiles, scenario,
};

/// Loads as multiples of the capacity; the paper's server saturates at 25 requests per second.
const LOADS: [f64; 7] = [0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];

const LABELS: [&str; 3] = ["FCFS", "SJF", "RR-SJF"];

const CONDITIONS: &str = "1,000 requests, Poisson arrivals at 0.5 to 3 times the capacity (FCFS in a \
    burst; the paper's server saturates at 25 requests/s, its other rates are not readable), true \
    lengths, Llama-3.2-1B on an L4 (roofline), 256 sequences, slices of 5 tokens, KV of a preempted \
    request stays while it fits";

fn grid() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (label, policy) in policies().into_iter().filter(|(label, _)| LABELS.contains(label)) {
        trials.extend(LOADS.map(|load| Trial {
            label: label.into(),
            x: load,
            scenario: scenario(policy, Pace::Load { load, gamma: false }, 0.0),
        }));
    }
    trials
}

fn at(measured: &[Measured], label: &str, load: f64, time: Time, p: f64) -> Vec<f64> {
    let found = measured.iter().find(|m| m.label == label && m.x == load);
    quantiles(found.expect("the grid has every load"), time, p)
}

fn ratio(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

/// Figure 8: TTFT.
pub const FIG8: Experiment = Experiment {
    name: "rr-sjf-fig8",
    source: "RR-SJF, figure 8: TTFT over the rate",
    claim: "from saturation on, RR-SJF's median is nearly 10x below FCFS's; it is above SJF's; \
            RR-SJF's maximum is about SJF's 60th percentile",
    conditions: CONDITIONS,
    grid,
    read: |measured| {
        let of = |label, load, p| at(measured, label, load, TTFT, p);
        let mut findings = Vec::new();
        for load in LOADS.into_iter().filter(|&load| load >= 1.0) {
            let ours = of("RR-SJF", load, 0.5);
            let fcfs = ratio(&of("FCFS", load, 0.5), &ours);
            let sjf = ratio(&ours, &of("SJF", load, 0.5));
            let max = ratio(&of("RR-SJF", load, 1.0), &of("SJF", load, 0.6));
            let name = |of: &str| format!("load {load}: {of}");
            findings.push(Finding::new(name("median TTFT, FCFS / RR-SJF"), "nearly 10", fcfs));
            findings.push(Finding::new(name("median TTFT, RR-SJF / SJF"), "above 1", sjf));
            findings.push(Finding::new(name("RR-SJF's largest / SJF's p60"), "about 1", max));
        }
        findings
    },
    panels: |measured| quantile_panels(measured, "load", ("TTFT", TTFT), &LABELS),
};

/// Figure 7: E2EL.
pub const FIG7: Experiment = Experiment {
    name: "rr-sjf-fig7",
    source: "RR-SJF, figure 7: E2EL over the rate",
    claim: "RR-SJF costs little E2EL; TTFT and E2EL are stable beyond saturation",
    conditions: CONDITIONS,
    grid,
    read: |measured| {
        let mut findings = Vec::new();
        for load in LOADS {
            let median = |label| at(measured, label, load, E2EL, 0.5);
            for under in ["FCFS", "SJF"] {
                let ours = ratio(&median("RR-SJF"), &median(under));
                let quantity = format!("load {load}: median E2EL, RR-SJF / {under}");
                findings.push(Finding::new(quantity, "about 1, slightly above", ours));
            }
        }
        findings
    },
    panels: |measured| quantile_panels(measured, "load", ("E2EL", E2EL), &LABELS),
};
