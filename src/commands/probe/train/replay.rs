//! Trained probes and options of the rank by how they schedule: answers that were not trained on,
//! on the scheduler's virtual clock.

use std::ops::ControlFlow;

use serde::Serialize;
use trail_cli::Error;
use trail_platform::Rng;
use trail_platform::stats::Sorted;
use trail_probe::Tracker;
use trail_runtime::engine::PolicyKind;
use trail_scheduler::SchedulerConfig;
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{Job, Refined, Simulation, StepModel, schedule};
use trail_training::fit::{Observed, Step};

/// Loads at which contenders are compared.
pub const LOADS: [f64; 2] = [1.1, 1.5];

/// Draws of answers, with replacement: their spread is that over answers and arrivals.
const DRAWS: u64 = 16;

/// Requests of a draw.
const REQUESTS: usize = 400;

/// Sequences of a step.
const ROWS: u32 = 8;

/// A policy, and the answers with the predictions that it sees.
pub struct Contender<'a> {
    /// The policy.
    pub policy: PolicyKind,
    /// One for each answer, the same of all contenders but for the predictions.
    pub jobs: &'a [Job],
}

/// How a contender schedules.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Replayed {
    /// FCFS's mean latency over the contender's, the mean over draws, at each of [`LOADS`].
    pub gains: [f64; LOADS.len()],
    /// Its p99 latency over FCFS's, likewise.
    pub tails: [f64; LOADS.len()],
    /// The best mean of `gains` less this one; 0 of the best.
    pub shortfall: f64,
    /// Standard error of `shortfall`.
    pub standard_error: f64,
}

impl Replayed {
    /// True for the best.
    pub fn is_best(&self) -> bool {
        self.shortfall == 0.0
    }

    /// `shortfall` and its error in a table: a difference below its standard error is none.
    pub fn cells(&self) -> [String; 2] {
        match (self.is_best(), self.shortfall < self.standard_error) {
            (true, _) => ["-".to_owned(), "-".to_owned()],
            (false, true) => ["none".to_owned(), format!("{:.3}", self.standard_error)],
            _ => [format!("{:.3}", self.shortfall), format!("{:.3}", self.standard_error)],
        }
    }
}

/// Gain and tail at each of [`LOADS`].
type Figures = [[f64; 2]; LOADS.len()];

/// Runs all contenders, at least one, on the same draws.
pub fn replay(contenders: &[Contender<'_>]) -> Result<Vec<Replayed>, Error> {
    // [draw][contender][load]
    let draws =
        (0..DRAWS).map(|draw| figures(contenders, draw)).collect::<Result<Vec<_>, Error>>()?;
    let mean = |of: &dyn Fn(&Vec<Figures>) -> f64| draws.iter().map(of).sum::<f64>() / DRAWS as f64;
    let gain = |of: &Figures| of.iter().map(|[gain, _]| gain).sum::<f64>() / LOADS.len() as f64;
    let total = |at: usize| mean(&|draw| gain(&draw[at]));
    let best = (0..contenders.len()).max_by(|&a, &b| total(a).total_cmp(&total(b)));
    let best = best.expect("a contender");
    // Draws of so many requests spread as so many answers would; there are fewer.
    let fewer = (REQUESTS as f64 / contenders[0].jobs.len() as f64).max(1.0).sqrt();
    let replayed = (0..contenders.len()).map(|at| {
        let difference = |draw: &Vec<Figures>| gain(&draw[best]) - gain(&draw[at]);
        let shortfall = mean(&difference);
        let square = mean(&|draw| (difference(draw) - shortfall).powi(2));
        let [gains, tails] =
            [0, 1].map(|figure| std::array::from_fn(|load| mean(&|draw| draw[at][load][figure])));
        Replayed { gains, tails, shortfall, standard_error: square.sqrt() * fewer }
    });
    Ok(replayed.collect())
}

/// A request with the estimates of a filter; r is that of the prompt. Between two observations an
/// estimate counts down.
pub fn job(tracker: &mut Tracker, generation: u32, answer: &Observed, max_tokens: u32) -> Job {
    let mut remaining: Vec<f32> = Vec::with_capacity(answer.tokens as usize);
    for Step { generated, p, .. } in &answer.steps {
        let estimate = tracker.observe(0, generation, *generated, p);
        let estimate = estimate.expect("generations ascend").remaining;
        while remaining.len() < *generated as usize {
            remaining.push((remaining.last().copied().unwrap_or(estimate) - 1.0).max(0.0));
        }
        remaining.push(estimate);
    }
    while remaining.len() < answer.tokens as usize {
        remaining.push((remaining.last().copied().unwrap_or(1.0) - 1.0).max(0.0));
    }
    remaining.truncate(answer.tokens as usize);
    Job {
        id: u64::from(generation),
        arrival_ns: 0,
        prompt_tokens: answer.prompt_tokens.max(1),
        output_tokens: answer.tokens,
        max_tokens: max_tokens.max(answer.tokens),
        priority: 0,
        r: remaining.first().copied(),
        refined: Refined::Recorded(remaining.into()),
        block_hashes: [].into(),
    }
}

/// Figures of each contender, for answers drawn by `seed`.
fn figures(contenders: &[Contender<'_>], seed: u64) -> Result<Vec<Figures>, Error> {
    let model: StepModel = "a100-80g:8b".parse().map_err(Error::failed)?;
    let answers = contenders[0].jobs;
    let longest = answers.iter().map(|job| job.prompt_tokens + job.max_tokens).max().unwrap_or(2);
    let config = SchedulerConfig { max_running: ROWS, max_context: longest, ..model.scheduler() };
    let simulation = Simulation::new(config, model);
    let run = |policy: PolicyKind, jobs: &[Job]| {
        let watch = &mut |_| ControlFlow::Continue(());
        let run = simulation.run(&|| policy.build(), jobs, watch);
        run.map_err(|error| Error::failed(error.to_string()))
    };
    let mut rng = Rng::new(seed);
    let drawn: Vec<usize> =
        (0..REQUESTS).map(|_| rng.below(answers.len() as u64) as usize).collect();
    let draw = |jobs: &[Job]| -> Vec<Job> {
        (0..).zip(&drawn).map(|(id, &at)| Job { id, ..jobs[at].clone() }).collect()
    };
    let burst = run(PolicyKind::Fcfs, &draw(answers))?;
    let capacity = burst.saturated_tokens_per_s * REQUESTS as f64 / burst.tokens as f64;
    let mut figures = vec![[[0.0; 2]; LOADS.len()]; contenders.len()];
    for (at, load) in LOADS.into_iter().enumerate() {
        let arrivals = Arrivals::Poisson { rate: load * capacity };
        let latencies = |policy: PolicyKind, jobs: &[Job]| {
            let mut jobs = draw(jobs);
            schedule(&mut jobs, arrivals, seed);
            let run = run(policy, &jobs)?;
            let latencies = Sorted::of(run.outcomes.iter().map(|of| of.latency_s));
            Ok::<_, Error>((latencies.mean(), latencies.nearest_rank(0.99)))
        };
        let (mean, p99) = latencies(PolicyKind::Fcfs, answers)?;
        for (of, figures) in contenders.iter().zip(&mut figures) {
            let own = latencies(of.policy, of.jobs)?;
            figures[at] = [mean / own.0, own.1 / p99];
        }
    }
    Ok(figures)
}
