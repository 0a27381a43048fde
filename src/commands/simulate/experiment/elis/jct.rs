//! Figures 5 and 6 and table 5: job completion times (JCT) by model, rate and batch.

use super::{A100, Experiment, Finding, MODELS, Measured, Scheduler, Served, Trial, queueing_s};
use crate::commands::simulate::experiment::labelled;
use crate::commands::simulate::scenario::Pace;
use crate::plot::{Curve, Panel};

/// Prompts of a run (paper).
const REQUESTS: usize = 200;

/// Batch of figure 5 and table 5.
const BATCH: u32 = 4;

/// Multiples of the rate.
const MULTIPLES: [u32; 3] = [1, 3, 5];

/// Rank correlations of other predictors, by which the paper's gain can be placed.
const TAUS: [f64; 5] = [0.0, 0.1, 0.2, 0.4, 0.6];

/// Table 5: mean JCT in seconds of FCFS, ISRTF and SJF at each multiple, by model.
const PAPER: [[[f64; 3]; 3]; 5] = [
    [[77.83, 73.57, 20.35], [116.46, 98.74, 43.63], [118.13, 118.11, 43.63]],
    [[45.08, 50.52, 13.21], [83.42, 72.33, 24.62], [73.93, 74.41, 31.91]],
    [[93.42, 73.43, 32.34], [134.96, 118.22, 58.39], [144.23, 131.38, 60.98]],
    [[240.25, 212.60, 70.55], [350.55, 352.53, 133.11], [451.59, 377.29, 125.59]],
    [[91.28, 130.71, 37.02], [229.64, 200.34, 59.37], [251.66, 234.08, 89.64]],
];

const CONDITIONS: &str = "200 prompts a run, Gamma arrivals (shape 0.73) at 1, 3 and 5 times batch \
    / table 4's latency; A100 roofline, so that the latency fixes each model's mean output \
    (log-normal, variation 1: 186-224 tokens for OPT and Vicuna, 650 and 920 for LLaMA2); windows \
    of 50 tokens, each request its own; the demo probe's recorded predictions (mean error 18.5 \
    tokens on its own set; ELIS's predictor 19.9), stretched to the lengths; SJF has the true \
    lengths; no time for scheduling or prediction (the paper: 11 ms)";

fn label(served: &Served, batch: u32, multiple: u32, scheduler: Scheduler) -> String {
    format!("{} batch {batch} {multiple}x {}", served.name, scheduler.name())
}

fn trial(served: Served, batch: u32, multiple: u32, scheduler: Scheduler) -> Trial {
    let pace = Pace::Rate { rate: f64::from(multiple) * served.rate(batch), gamma: true };
    Trial {
        label: label(&served, batch, multiple, scheduler),
        x: f64::from(multiple),
        scenario: scheduler.scenario(
            served,
            REQUESTS,
            pace,
            served.simulation(A100, batch, REQUESTS),
        ),
    }
}

/// All models at all multiples under `schedulers`.
fn grid(batches: &[u32], schedulers: &[Scheduler]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for served in MODELS {
        for &batch in batches {
            for multiple in MULTIPLES {
                let under = |&scheduler| trial(served, batch, multiple, scheduler);
                trials.extend(schedulers.iter().map(under));
            }
        }
    }
    trials
}

/// Mean JCT of one cell, by seed.
fn jct(measured: &[Measured], served: &Served, cell: (u32, u32), scheduler: Scheduler) -> Vec<f64> {
    let (batch, multiple) = cell;
    labelled(measured, &label(served, batch, multiple, scheduler)).each(|f| f.latency_s.mean)
}

/// How far `values` are below `base`, %.
fn reductions(base: &[f64], values: &[f64]) -> Vec<f64> {
    base.iter().zip(values).map(|(base, value)| 100.0 * (1.0 - value / base)).collect()
}

/// JCT of `scheduler` below FCFS's in one cell, %, by seed.
fn reduction(
    measured: &[Measured],
    served: &Served,
    cell: (u32, u32),
    scheduler: Scheduler,
) -> Vec<f64> {
    let fcfs = jct(measured, served, cell, Scheduler::Fcfs);
    reductions(&fcfs, &jct(measured, served, cell, scheduler))
}

/// One value by seed of many cells: their means.
fn mean_by_seed(cells: &[Vec<f64>]) -> Vec<f64> {
    let seeds = cells.first().map_or(0, Vec::len);
    let mean = |seed: usize| cells.iter().map(|cell| cell[seed]).sum::<f64>() / cells.len() as f64;
    (0..seeds).map(mean).collect()
}

/// One value by seed of many cells: the largest.
fn max_by_seed(cells: &[Vec<f64>]) -> Vec<f64> {
    let seeds = cells.first().map_or(0, Vec::len);
    let max = |seed: usize| cells.iter().map(|cell| cell[seed]).fold(f64::NEG_INFINITY, f64::max);
    (0..seeds).map(max).collect()
}

/// JCT of `scheduler` over FCFS's in %, one curve a model, over the multiple.
fn over_fcfs(measured: &[Measured], batch: u32, scheduler: Scheduler) -> Panel {
    let curves = MODELS.iter().map(|served| {
        let point = |&multiple: &u32| {
            let cell = reduction(measured, served, (batch, multiple), scheduler);
            (f64::from(multiple), 100.0 - cell.iter().sum::<f64>() / cell.len().max(1) as f64)
        };
        Curve { name: served.name.into(), points: MULTIPLES.iter().map(point).collect() }
    });
    let y = format!("JCT of {} / FCFS, %, batch {batch}", scheduler.name());
    Panel::lines(["rate, multiples of batch / latency", &y], curves.collect())
}

/// Figure 5: JCT of ISRTF and FCFS.
pub const FIG5: Experiment = Experiment {
    name: "elis-fig5",
    source: "ELIS, figure 5: JCT of FCFS and ISRTF, batch 4",
    claim: "ISRTF is 7.36 % below FCFS on average and 21.40 % at most",
    conditions: CONDITIONS,
    grid: || {
        let mut schedulers = vec![Scheduler::Fcfs, Scheduler::Isrtf];
        schedulers.extend(TAUS.map(Scheduler::Ranked));
        grid(&[BATCH], &schedulers)
    },
    read: |measured| {
        let mut findings = Vec::new();
        let mut cells = Vec::new();
        for (served, paper) in MODELS.iter().zip(PAPER) {
            for (multiple, [fcfs, isrtf, _]) in MULTIPLES.into_iter().zip(paper) {
                let cell = reduction(measured, served, (BATCH, multiple), Scheduler::Isrtf);
                let quantity = format!("{} {multiple}x: ISRTF below FCFS, %", served.name);
                let printed = format!("{:.2}", 100.0 * (1.0 - isrtf / fcfs));
                findings.push(Finding::new(quantity, printed, cell.clone()));
                cells.push(cell);
            }
        }
        findings.push(Finding::new(
            "all cells: mean, %",
            "7.36 (its table 5: 4.5)",
            mean_by_seed(&cells),
        ));
        findings.push(Finding::new("all cells: most, %", "21.40", max_by_seed(&cells)));
        findings.push(queueing(measured));
        findings.extend(TAUS.map(|tau| ranked(measured, tau)));
        findings
    },
    panels: |measured| vec![over_fcfs(measured, BATCH, Scheduler::Isrtf)],
};

/// The mean over all cells with one prediction of the rank correlation `tau`.
fn ranked(measured: &[Measured], tau: f64) -> Finding {
    let cells = MODELS.iter().flat_map(|served| {
        let cell =
            move |multiple| reduction(measured, served, (BATCH, multiple), Scheduler::Ranked(tau));
        MULTIPLES.into_iter().map(cell)
    });
    let ours = mean_by_seed(&cells.collect::<Vec<_>>());
    Finding::new(format!("all cells: mean, one prediction of tau {tau}, %"), "not measured", ours)
}

/// The right half of figure 5: the queueing delay of lam13 at 5x.
fn queueing(measured: &[Measured]) -> Finding {
    let served = &MODELS[3];
    let of = |scheduler| {
        let trial = labelled(measured, &label(served, BATCH, 5, scheduler));
        queueing_s(trial, served.step_s(A100))
    };
    let ours = reductions(&of(Scheduler::Fcfs), &of(Scheduler::Isrtf));
    Finding::new("lam13 5x: queueing delay of ISRTF below FCFS, %", "16.75", ours)
}

/// Table 5: JCT of FCFS, ISRTF and the oracle's SJF.
pub const TABLE5: Experiment = Experiment {
    name: "elis-table5",
    source: "ELIS, table 5: mean JCT by model and scheduler, batch 4",
    claim: "SJF with the true lengths is 57-74 % below FCFS, ISRTF in between in 11 of 15 cells",
    conditions: CONDITIONS,
    grid: || grid(&[BATCH], &[Scheduler::Fcfs, Scheduler::Isrtf, Scheduler::Sjf]),
    read: |measured| {
        let mut findings = Vec::new();
        for (served, paper) in MODELS.iter().zip(PAPER) {
            for (multiple, row) in MULTIPLES.into_iter().zip(paper) {
                let schedulers = [Scheduler::Fcfs, Scheduler::Isrtf, Scheduler::Sjf];
                for (scheduler, printed) in schedulers.into_iter().zip(row) {
                    let quantity = format!("{} {multiple}x: {}, s", served.name, scheduler.name());
                    let ours = jct(measured, served, (BATCH, multiple), scheduler);
                    findings.push(Finding::new(quantity, printed.to_string(), ours));
                }
            }
        }
        findings
    },
    panels: |measured| {
        let below = |scheduler| over_fcfs(measured, BATCH, scheduler);
        vec![below(Scheduler::Isrtf), below(Scheduler::Sjf)]
    },
};

/// Batches of figure 6.
const SMALL_BATCHES: [u32; 2] = [1, 2];

/// Figure 6: smaller batches.
pub const FIG6: Experiment = Experiment {
    name: "elis-fig6",
    source: "ELIS, figure 6: JCT of ISRTF below FCFS, batches of 1 and 2",
    claim: "up to 19.58 % (batch 1, 1x); above 0 in all setups but one; less at high rates",
    conditions: CONDITIONS,
    grid: || grid(&SMALL_BATCHES, &[Scheduler::Fcfs, Scheduler::Isrtf]),
    read: |measured| {
        let mut findings = Vec::new();
        for batch in SMALL_BATCHES {
            for multiple in MULTIPLES {
                let cell =
                    |served| reduction(measured, served, (batch, multiple), Scheduler::Isrtf);
                let cells: Vec<Vec<f64>> = MODELS.iter().map(cell).collect();
                let printed = if (batch, multiple) == (1, 1) { "19.58" } else { "not readable" };
                let quantity = format!("batch {batch}, {multiple}x: mean of the models, %");
                findings.push(Finding::new(quantity, printed, mean_by_seed(&cells)));
            }
        }
        findings
    },
    panels: |measured| {
        SMALL_BATCHES.map(|batch| over_fcfs(measured, batch, Scheduler::Isrtf)).into()
    },
};
