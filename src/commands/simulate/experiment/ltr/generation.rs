//! Synthetic data generation: the first answers of many prompts.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::simulator::Run;

use super::super::curves::{distributions, of_runs};
use super::super::{Experiment, Finding, labelled};
use super::{LMSYS, RANKING, SHAREGPT, SMALL, policy, rank, scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::Panel;

/// Prompts, answers wanted, and the limit of time in seconds.
const PROMPTS: usize = 10_000;
const WANTED: usize = 1000;
const LIMIT_S: f64 = 300.0;

/// Time until [`WANTED`] requests are answered, seconds.
pub fn time_to_wanted(run: &Run) -> f64 {
    let mut ends: Vec<f64> = run.outcomes.iter().map(|outcome| outcome.latency_s).collect();
    ends.sort_by(f64::total_cmp);
    ends.get(WANTED - 1).copied().unwrap_or(f64::NAN)
}

fn answered(run: &Run) -> f64 {
    run.outcomes.iter().filter(|outcome| outcome.latency_s <= LIMIT_S).count() as f64
}

const SCHEDULERS: [&str; 3] = ["fcfs", "classification", "ranking"];

/// Table 2, Llama-3-8B: seconds to 1,000 answers, and answers in 5 minutes.
const PRINTED: [(&str, [&str; 3], [&str; 3]); 2] = [
    ("sharegpt", ["343.29", "421.92", "143.18"], ["841", "655", "1706"]),
    ("lmsys", ["197.38", "237.40", "30.48"], ["1348", "1644", "4434"]),
];

/// Table 2: synthetic data generation.
pub const TABLE2: Experiment = Experiment {
    name: "ltr-table2",
    source: "Learning to Rank, table 2: 1,000 answers of 10,000 prompts, answers in 5 minutes",
    claim: "2.4-6.5x less time to 1,000 answers than FCFS; classification takes longer than FCFS",
    conditions: "10,000 requests at once, Llama-3-8B on an A100-80GB (roofline: faster than the \
                 paper's engine, so ratios count), 256 sequences, 768 tokens a step, assumed \
                 log-normal lengths, predictors at tau 0.55 and 0.64 without their cost (the \
                 paper's classifier pays it for all prompts first); the 70B rows are not run",
    grid: || {
        let mut grid = Vec::new();
        for set in [SHAREGPT, LMSYS] {
            let policies =
                [PolicyKind::Fcfs, policy("classification"), policy(RANKING)].into_iter();
            for (name, policy) in SCHEDULERS.iter().zip(policies) {
                let data = (set.dataset, rank(set.ranking_tau));
                let label = format!("{} {name}", set.dataset.name);
                let scenario = scenario(SMALL, data, policy, Pace::Burst, PROMPTS);
                grid.push(trial(label, 0.0, scenario));
            }
        }
        grid
    },
    read: |measured| {
        let mut findings = Vec::new();
        for (set, times, counts) in PRINTED {
            let of = |name: &str| labelled(measured, &format!("{set} {name}"));
            for ((name, time), count) in SCHEDULERS.iter().zip(times).zip(counts) {
                let ours = of_runs(of(name), time_to_wanted);
                findings.push(Finding::new(format!("{set} {name}: s to 1,000"), time, ours));
                let ours = of_runs(of(name), answered);
                findings.push(Finding::new(format!("{set} {name}: in 5 min"), count, ours));
            }
            let [fcfs, ranking] = ["fcfs", "ranking"].map(|name| of_runs(of(name), time_to_wanted));
            let gains = fcfs.iter().zip(ranking).map(|(fcfs, ranking)| fcfs / ranking).collect();
            let gain = if set == "sharegpt" { "2.40" } else { "6.48" };
            findings.push(Finding::new(format!("{set}: s to 1,000, fcfs / ranking"), gain, gains));
        }
        findings
    },
    panels: |measured| {
        let (sharegpt, lmsys) = measured.split_at(SCHEDULERS.len());
        let panel = |caption, set| {
            let curves = distributions(set, |outcome| outcome.latency_s);
            Panel::cumulative([caption, "prompts answered, %"], curves)
        };
        vec![panel("time (ShareGPT), s", sharegpt), panel("time (LMSYS), s", lmsys)]
    },
};
