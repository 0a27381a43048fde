//! The choice among trained probes and their filters by how they schedule: answers that they were
//! not trained on, on the scheduler's virtual clock.

use std::ops::ControlFlow;

use serde::Serialize;
use trail_cli::{Error, Table};
use trail_platform::Rng;
use trail_probe::{FilterKind, Probe, Tracker};
use trail_runtime::engine::PolicyKind;
use trail_scheduler::SchedulerConfig;
use trail_scheduler::policies::Trail;
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{Job, Refined, Simulation, StepModel, schedule};
use trail_training::Dataset;
use trail_training::fit::{Observed, Step, fit_probe, observed};

/// Loads at which they are compared.
const LOADS: [f64; 2] = [1.1, 1.5];

/// Draws of answers, with replacement: their spread is that over answers and arrivals.
const DRAWS: u64 = 16;

/// Requests of a draw.
const REQUESTS: usize = 400;

/// Sequences of a step.
const ROWS: u32 = 8;

/// A trained probe, and what it predicts for the validation's answers.
pub struct Candidate {
    /// The probe, with a fit where its head has one.
    pub probe: Probe,
    answers: Vec<Observed>,
}

impl Candidate {
    /// That of `probe`, trained on `data`.
    pub fn new(mut probe: Probe, data: &Dataset<'_>) -> Candidate {
        let answers = observed(&probe, data);
        probe.fit = probe.has_filters().then(|| fit_probe(&probe, data, &answers));
        Candidate { probe, answers }
    }

    /// The filters that it has what they need for.
    fn filters(&self) -> impl Iterator<Item = FilterKind> + use<> {
        // Only a head of bins has a fit, and only it has filters.
        let kinds =
            if self.probe.fit.is_some() { &FilterKind::ALL[..] } else { &[FilterKind::Raw] };
        kinds.iter().copied()
    }
}

/// How a probe schedules with a filter.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The candidate, by its place.
    #[serde(skip)]
    pub candidate: usize,
    /// `bins` or `survival`.
    pub head: &'static str,
    /// Its inputs.
    pub inputs: String,
    /// `raw`, `bins` or `tokens`.
    pub filter: &'static str,
    /// FCFS's mean latency over TRAIL's, the mean over draws, at each of [`LOADS`].
    pub gains: [f64; LOADS.len()],
    /// The best mean of `gains` less this one.
    pub shortfall: f64,
    /// Standard error of `shortfall`.
    pub standard_error: f64,
}

/// Judges every candidate with every filter, the best first, whose filter becomes the candidate's.
pub fn judge(candidates: &mut [Candidate]) -> Result<Vec<Judged>, Error> {
    let pairs: Vec<(usize, FilterKind)> = (0..candidates.len())
        .flat_map(|at| candidates[at].filters().map(move |kind| (at, kind)))
        .collect();
    let jobs: Vec<Vec<Job>> = pairs
        .iter()
        .map(|&(at, kind)| {
            let Candidate { probe, answers } = &mut candidates[at];
            probe.filter_kind = Some(kind);
            let mut tracker = Tracker::new(probe.filter(), 1);
            let longest = probe.bins.max_tokens();
            let of = |(generation, answer)| job(&mut tracker, generation, answer, longest);
            (0..).zip(&*answers).map(of).collect()
        })
        .collect();
    // [draw][pair][load]
    let draws = (0..DRAWS).map(|draw| gains(&jobs, draw)).collect::<Result<Vec<_>, _>>()?;
    let mean = |of: &dyn Fn(&Vec<[f64; LOADS.len()]>) -> f64| {
        draws.iter().map(of).sum::<f64>() / DRAWS as f64
    };
    let both = |gains: &[f64; LOADS.len()]| gains.iter().sum::<f64>() / LOADS.len() as f64;
    let total = |at: usize| mean(&|draw| both(&draw[at]));
    let best = (0..pairs.len()).max_by(|&a, &b| total(a).total_cmp(&total(b)));
    let best = best.expect("a candidate");
    // Draws of so many requests spread as so many answers would; there are fewer.
    let fewer = (REQUESTS as f64 / candidates[0].answers.len() as f64).max(1.0).sqrt();
    let mut judged: Vec<Judged> = (0..pairs.len())
        .map(|at| {
            let (candidate, filter) = pairs[at];
            let weights = &candidates[candidate].probe.weights;
            let difference = |draw: &Vec<[f64; LOADS.len()]>| both(&draw[best]) - both(&draw[at]);
            let shortfall = mean(&difference);
            let square = mean(&|draw| (difference(draw) - shortfall).powi(2));
            Judged {
                candidate,
                head: weights.kind.name(),
                inputs: weights.inputs().to_string(),
                filter: filter.name(),
                gains: std::array::from_fn(|load| mean(&|draw| draw[at][load])),
                shortfall,
                standard_error: square.sqrt() * fewer,
            }
        })
        .collect();
    candidates[pairs[best].0].probe.filter_kind = Some(pairs[best].1);
    judged.swap(0, best);
    Ok(judged)
}

/// A request with the estimates of a filter. Between two observations an estimate counts down.
fn job(tracker: &mut Tracker, generation: u32, answer: &Observed, max_tokens: u32) -> Job {
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

/// FCFS's mean latency over that of TRAIL with each of `jobs`, at each load, for answers drawn by
/// `seed`.
fn gains(jobs: &[Vec<Job>], seed: u64) -> Result<Vec<[f64; LOADS.len()]>, Error> {
    let model: StepModel = "a100-80g:8b".parse().map_err(Error::failed)?;
    let longest = jobs[0].iter().map(|job| job.prompt_tokens + job.max_tokens).max().unwrap_or(2);
    let config = SchedulerConfig { max_running: ROWS, max_context: longest, ..model.scheduler() };
    let simulation = Simulation::new(config, model);
    let run = |policy: PolicyKind, jobs: &[Job]| {
        let watch = &mut |_| ControlFlow::Continue(());
        let run = simulation.run(&|| policy.build(), jobs, watch);
        run.map_err(|error| Error::failed(error.to_string()))
    };
    let mut rng = Rng::new(seed);
    let drawn: Vec<usize> =
        (0..REQUESTS).map(|_| rng.below(jobs[0].len() as u64) as usize).collect();
    let of_filter = |jobs: &[Job]| -> Vec<Job> {
        (0..).zip(&drawn).map(|(id, &at)| Job { id, ..jobs[at].clone() }).collect()
    };
    let burst = run(PolicyKind::Fcfs, &of_filter(&jobs[0]))?;
    let capacity = burst.saturated_tokens_per_s * REQUESTS as f64 / burst.tokens as f64;
    let mut gains = vec![[0.0; LOADS.len()]; jobs.len()];
    for (at, load) in LOADS.into_iter().enumerate() {
        let arrivals = Arrivals::Poisson { rate: load * capacity };
        let mean = |policy: PolicyKind, jobs: &[Job]| {
            let mut jobs = of_filter(jobs);
            schedule(&mut jobs, arrivals, seed);
            let run = run(policy, &jobs)?;
            Ok::<f64, Error>(run.outcomes.iter().map(|of| of.latency_s).sum())
        };
        let fcfs = mean(PolicyKind::Fcfs, &jobs[0])?;
        for (filter, jobs) in jobs.iter().enumerate() {
            gains[filter][at] = fcfs / mean(PolicyKind::Trail(Trail::default()), jobs)?;
        }
    }
    Ok(gains)
}

/// The table of `judged`. A difference below its standard error is none.
pub fn table(judged: &[Judged]) -> Table {
    let columns = LOADS.map(|load| format!("load {load}"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::default()
        .group("", &["head", "inputs", "filter"])
        .group("FCFS / trail, mean latency", &columns)
        .group("behind the best by", &["mean", "standard error"]);
    for of in judged {
        let name = [of.head, &of.inputs, of.filter].map(str::to_owned);
        let gains = of.gains.map(|gain| format!("{gain:.3}"));
        let shortfall = match of.shortfall < of.standard_error {
            true => "none".to_owned(),
            false => format!("{:.3}", of.shortfall),
        };
        let behind = match of.shortfall == 0.0 {
            true => ["-", "-"].map(str::to_owned),
            false => [shortfall, format!("{:.3}", of.standard_error)],
        };
        table.row([&name[..], &gains, &behind].concat());
    }
    table
}
