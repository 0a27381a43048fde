//! Distributions of the lengths.

use trail_runtime::engine::PolicyKind;
use trail_simulator::{Noise, SimulationRun};

use super::super::curves::{distributions, of_requests, of_runs};
use super::super::{Experiment, Finding, labelled};
use super::{LMSYS, SHAREGPT, SMALL, scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::Panel;

/// Requests drawn, as in the paper.
const DRAWN: usize = 10_000;

fn mean_prompt(run: &SimulationRun) -> f64 {
    let prompts = of_requests(run, |outcome| f64::from(outcome.prompt_tokens));
    prompts.iter().sum::<f64>() / prompts.len().max(1) as f64
}

fn mean_output(run: &SimulationRun) -> f64 {
    run.tokens as f64 / run.outcomes.len().max(1) as f64
}

/// Figure 7: lengths of the data sets.
pub const FIG7: Experiment = Experiment {
    name: "ltr-fig7",
    source: "Learning to Rank, figure 7: lengths of prompts and outputs",
    claim: "mean prompts of 85 (LMSYS) and 240 tokens (ShareGPT); ShareGPT's outputs are 100 tokens \
            longer",
    conditions: "10,000 drawn lengths of each set: a check of the generator, whose log-normal \
                 shapes are assumed, as is LMSYS's mean output of 215 tokens (the data set's own \
                 paper)",
    grid: || {
        let drawn = [SHAREGPT, LMSYS].map(|set| {
            let data = (set.dataset, Noise::None);
            let scenario = scenario(SMALL, data, PolicyKind::Fcfs, Pace::Burst, DRAWN);
            trial(set.dataset.name, 0.0, scenario)
        });
        drawn.into()
    },
    read: |measured| {
        let [sharegpt, lmsys] = ["sharegpt", "lmsys"].map(|set| labelled(measured, set));
        let outputs = [sharegpt, lmsys].map(|set| of_runs(set, mean_output));
        let longer = outputs[0].iter().zip(&outputs[1]).map(|(a, b)| a - b).collect();
        vec![
            Finding::new("ShareGPT, mean prompt", "240", of_runs(sharegpt, mean_prompt)),
            Finding::new("LMSYS, mean prompt", "85", of_runs(lmsys, mean_prompt)),
            Finding::new("ShareGPT's mean output - LMSYS's", "100", longer),
        ]
    },
    panels: |measured| {
        vec![
            Panel::cumulative(
                ["prompt, tokens", "requests, %"],
                distributions(measured, |outcome| f64::from(outcome.prompt_tokens)),
            ),
            Panel::cumulative(
                ["output, tokens", "requests, %"],
                distributions(measured, |outcome| f64::from(outcome.output_tokens)),
            ),
        ]
    },
};
