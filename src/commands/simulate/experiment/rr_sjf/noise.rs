//! Figures 5 and 6: errors of the predictions.

use super::{
    E2EL, Experiment, Finding, Measured, Pace, TTFT, Time, Trial, policies, quantile_panels,
    quantiles, scenario,
};

/// Standard deviations of the error, tokens; the paper names 25 alone.
const SIGMAS: [f64; 7] = [0.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0];

/// The policies that use predictions.
const LABELS: [&str; 2] = ["SJF", "RR-SJF"];

const CONDITIONS: &str = "1,000 requests at once, prediction = length + normal error within 1 to \
    1,024 tokens, sigma 0 to 800 (the paper names 25 alone); Llama-3.2-1B on an L4 (roofline), 256 \
    sequences, slices of 5 tokens, KV of a preempted request stays while it fits";

fn grid() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (label, policy) in policies().into_iter().filter(|(label, _)| LABELS.contains(label)) {
        trials.extend(SIGMAS.map(|sigma| Trial {
            label: label.into(),
            x: sigma,
            scenario: scenario(policy, Pace::Burst, sigma),
        }));
    }
    trials
}

/// A quantile with errors of `sigma` over that without, by seed.
fn change(measured: &[Measured], label: &str, sigma: f64, time: Time, p: f64) -> Vec<f64> {
    let at = |sigma: f64| {
        let found = measured.iter().find(|m| m.label == label && m.x == sigma);
        quantiles(found.expect("the grid has every sigma"), time, p)
    };
    at(sigma).iter().zip(at(0.0)).map(|(noisy, exact)| noisy / exact).collect()
}

/// The change of median, 75th percentile and maximum at two levels.
fn changes(measured: &[Measured], time: Time, paper: [&str; 2]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (label, paper) in LABELS.into_iter().zip(paper) {
        for sigma in [25.0, 200.0, 800.0] {
            for (p, of) in [(0.5, "median"), (0.75, "75th percentile"), (1.0, "largest")] {
                let quantity = format!("{label}: {of}, sigma {sigma} / 0");
                let ours = change(measured, label, sigma, time, p);
                findings.push(Finding::new(quantity, paper, ours));
            }
        }
    }
    findings
}

/// Figure 5: TTFT.
pub const FIG5: Experiment = Experiment {
    name: "rr-sjf-fig5",
    source: "RR-SJF, figure 5: TTFT over the predictions' error",
    claim: "RR-SJF's TTFT is not affected; SJF's 75th percentile changes dramatically",
    conditions: CONDITIONS,
    grid,
    read: |measured| changes(measured, TTFT, ["changes", "about 1"]),
    panels: |measured| quantile_panels(measured, "sigma, tokens", ("TTFT", TTFT), &LABELS),
};

/// Figure 6: E2EL.
pub const FIG6: Experiment = Experiment {
    name: "rr-sjf-fig6",
    source: "RR-SJF, figure 6: E2EL over the predictions' error",
    claim: "neither policy's E2EL varies much",
    conditions: CONDITIONS,
    grid,
    read: |measured| changes(measured, E2EL, ["about 1", "about 1"]),
    panels: |measured| quantile_panels(measured, "sigma, tokens", ("E2EL", E2EL), &LABELS),
};
