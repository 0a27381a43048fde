//! Synthetic data generation: the first answers of many prompts.

use trail_runtime::engine::PolicyKind;
use trail_simulator::SimulationRun;

use super::super::curves::{distributions, of_runs};
use super::super::{Experiment, Finding, labelled};
use super::{CASES, Case, RANKING, policy, rank, scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::Panel;

/// Prompts, answers wanted, and the limit of time in seconds.
const PROMPTS: usize = 10_000;
const WANTED: usize = 1000;
const LIMIT_S: f64 = 300.0;

/// Time until [`WANTED`] requests are answered, seconds.
pub fn time_to_wanted(run: &SimulationRun) -> f64 {
    let mut ends: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.latency_s).collect();
    ends.sort_by(f64::total_cmp);
    ends.get(WANTED - 1).copied().unwrap_or(f64::NAN)
}

fn answered(run: &SimulationRun) -> f64 {
    run.outcomes.iter().filter(|outcome| outcome.latency_s <= LIMIT_S).count() as f64
}

const SCHEDULERS: [&str; 3] = ["fcfs", "classification", "ranking"];

/// Table 2: seconds to 1,000 answers, answers in 5 minutes, and ratio of FCFS's seconds to the
/// ranking's.
const PRINTED: [([&str; 3], [&str; 3], &str); 4] = [
    (["343.29", "421.92", "143.18"], ["841", "655", "1706"], "2.40"),
    (["197.38", "237.40", "30.48"], ["1348", "1644", "4434"], "6.48"),
    (["440.71", "512.84", "231.59"], ["670", "479", "1299"], "1.90"),
    (["253.68", "338.83", "59.67"], ["1167", "895", "3710"], "4.25"),
];

/// Table 2: synthetic data generation.
pub const TABLE2: Experiment = Experiment {
    name: "ltr-table2",
    source: "Learning to Rank, table 2: 1,000 answers of 10,000 prompts, answers in 5 minutes",
    claim: "2.4-6.5x less time to 1,000 answers than FCFS; classification takes longer than FCFS",
    conditions: "10,000 requests at once, Llama-3-8B on an A100-80GB and 70B on eight (roofline: \
                 faster than the paper's engine, so ratios count), 256 sequences, 768 tokens a \
                 step, assumed log-normal lengths, the same for both models, predictors at the \
                 printed tau without their cost (the paper's classifier pays it for all prompts \
                 first)",
    grid: || {
        let mut grid = Vec::new();
        for Case { name: case, model, set } in CASES {
            let policies = [PolicyKind::Fcfs, policy("classification"), policy(RANKING)];
            for (name, policy) in SCHEDULERS.iter().zip(policies) {
                let data = (set.dataset, rank(set.ranking_tau));
                let scenario = scenario(model, data, policy, Pace::Burst, PROMPTS);
                grid.push(trial(format!("{case} {name}"), 0.0, scenario));
            }
        }
        grid
    },
    read: |measured| {
        let mut findings = Vec::new();
        for (Case { name: case, .. }, (times, counts, gain)) in CASES.iter().zip(PRINTED) {
            let of = |name: &str| labelled(measured, &format!("{case} {name}"));
            for ((name, time), count) in SCHEDULERS.iter().zip(times).zip(counts) {
                let ours = of_runs(of(name), time_to_wanted);
                findings.push(Finding::new(format!("{case} {name}: s to 1,000"), time, ours));
                let ours = of_runs(of(name), answered);
                findings.push(Finding::new(format!("{case} {name}: in 5 min"), count, ours));
            }
            let [fcfs, ranking] = ["fcfs", "ranking"].map(|name| of_runs(of(name), time_to_wanted));
            let gains = fcfs.iter().zip(ranking).map(|(fcfs, ranking)| fcfs / ranking).collect();
            findings.push(Finding::new(format!("{case}: s to 1,000, fcfs / ranking"), gain, gains));
        }
        findings
    },
    panels: |measured| {
        let panel = |(case, measured): (&Case, _)| {
            let curves = distributions(measured, |outcome| outcome.latency_s);
            Panel::cumulative([&format!("time ({}), s", case.name), "prompts answered, %"], curves)
        };
        CASES.iter().zip(measured.chunks(SCHEDULERS.len())).map(panel).collect()
    },
};
