//! The last minutes' traffic under other policies.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use trail_cli::described_policy;
use trail_platform::delivery::smooth_share;
use trail_runtime::engine::PolicyKind;
use trail_scheduler::{SchedulerConfig, StepCost, StepPace};
use trail_simulator::{Job, Simulation, StepModel};

/// Traffic that is remembered.
const WINDOW: Duration = Duration::from_secs(300);
const MAX_JOBS: usize = 1000;

/// Fewest answers that are compared.
const MIN_JOBS: usize = 20;

/// Least time between two comparisons, and time for each time of computing.
const LEAST_PAUSE: Duration = Duration::from_secs(5);
const PAUSE_SHARE: u32 = 20;

/// Time after which a viewer that asked counts as gone.
const VIEWER: Duration = Duration::from_secs(5);

/// Largest factor between step times of the simulation and measured ones, the runs in which it is
/// looked for, and the distance of the mean latencies, as a logarithm, that is near enough.
const SCALES: f64 = 8.0;
const SCALE_STEPS: usize = 10;
const SCALE_ERROR: f64 = 0.05;

/// Steps after which a comparison is given up.
const MAX_STEPS: u64 = 2_000_000;

/// The last comparison, and who looks at it.
#[derive(Default)]
pub(crate) struct WhatIf {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the comparison, and its text.
    last: Option<(u64, Arc<str>)>,
    asked: Option<Instant>,
    next: Option<Instant>,
    is_running: bool,
}

/// The text of no comparison.
const NONE: &str = r#"{"window_s":0,"requests":0,"served":"","policies":[]}"#;

/// A comparison as the page reads it.
#[derive(Serialize)]
struct Comparison {
    window_s: f64,
    requests: usize,
    served: String,
    policies: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    name: String,
    mean_s: f64,
    p99_s: f64,
    /// Share of the answers in which a reader never waits.
    smooth_share: f64,
}

/// Settings of the engine whose traffic it is.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) config: SchedulerConfig,
    pub(super) max_gap: Duration,
    pub(super) served: PolicyKind,
    /// The others to compare.
    pub(super) others: Vec<PolicyKind>,
    pub(super) pace: StepPace,
}

impl Engine {
    /// Name of one of the policies, with the options of its rank where another has the same name.
    fn name(&self, policy: PolicyKind) -> String {
        let mut all = self.others.iter().chain([&self.served]);
        match all.any(|&of| of != policy && of.name() == policy.name()) {
            true => described_policy(policy),
            false => policy.label(),
        }
    }
}

impl State {
    /// Sets the last comparison; without one viewers hear that there is none.
    fn set(&mut self, text: Option<String>) {
        let text: Arc<str> = text.map_or_else(|| NONE.into(), Arc::from);
        let is_same = self.last.as_ref().is_some_and(|(_, last)| *last == text);
        if !is_same {
            let number = self.last.as_ref().map_or(0, |(number, _)| number + 1);
            self.last = Some((number, text));
        }
    }
}

impl WhatIf {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last comparison, for a viewer: while one asks, they are made.
    pub(crate) fn ask(&self) -> Option<(u64, Arc<str>)> {
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        state.last.clone()
    }

    /// True if a comparison is due.
    fn begin(&self) -> bool {
        let (now, mut state) = (Instant::now(), self.lock());
        let is_due = !state.is_running
            && state.asked.is_some_and(|at| now - at < VIEWER)
            && state.next.is_none_or(|at| now >= at);
        state.is_running |= is_due;
        is_due
    }

    fn end(&self, text: Option<String>, elapsed: Duration) {
        let mut state = self.lock();
        state.is_running = false;
        state.next = Some(Instant::now() + (PAUSE_SHARE * elapsed).max(LEAST_PAUSE));
        state.set(text);
    }

    /// Forgets the last comparison.
    fn forget(&self) {
        self.lock().set(None);
    }
}

/// An answer that has ended, as the simulator takes it, and the time that it took.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) job: Job,
    pub(super) latency_s: f64,
}

/// Answers that have ended, oldest first.
#[derive(Default)]
pub(super) struct Traffic {
    answers: VecDeque<Answered>,
    served: Option<PolicyKind>,
}

impl Traffic {
    pub(super) fn push(&mut self, answered: Answered) {
        if self.answers.len() == MAX_JOBS {
            self.answers.pop_front();
        }
        self.answers.push_back(answered);
    }

    /// Forgets what another policy than `served` has served, and what is old.
    pub(super) fn keep(&mut self, now_s: f64, served: PolicyKind, compared: &WhatIf) {
        if self.served.replace(served).is_some_and(|of| of != served) {
            self.answers.clear();
            compared.forget();
        }
        let oldest_ns = ((now_s - WINDOW.as_secs_f64()).max(0.0) * 1e9) as u64;
        self.answers.retain(|of| of.job.arrival_ns >= oldest_ns);
    }

    /// Compares the policies on a dedicated thread, if a viewer waits for it.
    pub(super) fn compare(&self, to: &Arc<WhatIf>, engine: impl FnOnce() -> Engine) {
        if self.answers.len() < MIN_JOBS || !to.begin() {
            return;
        }
        let count = self.answers.len() as f64;
        let measured_s = self.answers.iter().map(|of| of.latency_s).sum::<f64>() / count;
        let mut jobs: Vec<Job> = self.answers.iter().map(|of| of.job.clone()).collect();
        jobs.sort_by_key(|job| job.arrival_ns);
        let (engine, whole) = (engine(), to.clone());
        let thread = std::thread::Builder::new().name("trail-what-if".into());
        let spawned = thread.spawn(move || {
            let begin = Instant::now();
            let text = comparison(&jobs, measured_s, &engine);
            whole.end(text, begin.elapsed());
        });
        if spawned.is_err() {
            to.end(None, Duration::ZERO);
        }
    }
}

/// The figures of `jobs` under `policy`, with steps that take `scale` times as long as measured;
/// `None` if the simulation fails or takes too long.
fn simulate(jobs: &[Job], engine: &Engine, policy: PolicyKind, scale: f64) -> Option<Outcome> {
    let StepPace { fixed_s, row_s, prefill_token_s } = engine.pace;
    let ns = |seconds: f64| scale * seconds * 1e9;
    let cost = StepCost {
        fixed: ns(fixed_s).max(1.0),
        decode_row: ns(row_s),
        prefill_token: ns(prefill_token_s),
        context_token: 0.0,
        experts: None,
    };
    let model = StepModel::measured("served", cost, 0.0);
    let simulation =
        Simulation { max_gap: engine.max_gap, ..Simulation::new(engine.config, model) };
    let watch = &mut |progress: trail_simulator::Progress| match progress.steps > MAX_STEPS {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let run = simulation.run(&|| policy.build(), jobs, watch).ok()?;
    if run.interrupted {
        return None;
    }
    let mut latencies: Vec<f64> = run.outcomes.iter().map(|of| of.latency_s).collect();
    latencies.sort_by(f64::total_cmp);
    let mean_s = latencies.iter().sum::<f64>() / latencies.len() as f64;
    let p99_s = latencies[(latencies.len() * 99 / 100).min(latencies.len() - 1)];
    let smooth_share = smooth_share(run.outcomes.iter().map(|of| of.smooth_s));
    Some(Outcome { name: engine.name(policy), mean_s, p99_s, smooth_share })
}

/// The scale of step times at which the served policy has the measured mean latency, and what it
/// has then: the pace of the present says too little about minutes of traffic. `None` if there is
/// none.
fn scaled(jobs: &[Job], measured_s: f64, engine: &Engine) -> Option<(f64, Outcome)> {
    let (mut below, mut above) = (-SCALES.ln(), SCALES.ln());
    let mut at: f64 = 0.0;
    for _ in 0..SCALE_STEPS {
        let outcome = simulate(jobs, engine, engine.served, at.exp())?;
        let error = (outcome.mean_s / measured_s).ln();
        if error.abs() < SCALE_ERROR {
            return Some((at.exp(), outcome));
        }
        *(if error > 0.0 { &mut above } else { &mut below }) = at;
        // Latencies grow faster than step times, so this is beyond the wanted one at most once.
        let next = at - error;
        at = if below < next && next < above { next } else { 0.5 * (below + above) };
    }
    None
}

/// The comparison of `jobs`, which took `measured_s` seconds in the mean; `None` if one of the
/// simulations fails or takes too long, or the served one cannot be had.
fn comparison(jobs: &[Job], measured_s: f64, engine: &Engine) -> Option<String> {
    let (scale, outcome) = scaled(jobs, measured_s, engine)?;
    let mut policies = vec![outcome];
    for &policy in &engine.others {
        if policy != engine.served {
            policies.push(simulate(jobs, engine, policy, scale)?);
        }
    }
    let [first, last] = [jobs.first()?, jobs.last()?].map(|job| job.arrival_ns as f64 * 1e-9);
    let served = engine.name(engine.served);
    let whole = Comparison { window_s: last - first, requests: jobs.len(), served, policies };
    serde_json::to_string(&whole).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trail_simulator::Refined;

    /// 40 requests at once on two places, short and long in turn.
    #[test]
    fn shortest_first_saves_what_it_saves() {
        let jobs: Vec<Job> = (0..40)
            .map(|id| {
                let output_tokens = if id % 2 == 0 { 200 } else { 10 };
                Job {
                    id,
                    arrival_ns: id,
                    prompt_tokens: 8,
                    output_tokens,
                    max_tokens: 400,
                    priority: 0,
                    r: Some(output_tokens as f32),
                    refined: Refined::None,
                    block_hashes: [].into(),
                }
            })
            .collect();
        let what_if = Arc::new(WhatIf::default());
        let [bounded, mut unbounded]: [PolicyKind; 2] =
            ["trail"; 2].map(|name| name.parse().expect("a policy"));
        unbounded.ranking_mut().expect("a rank").tail_bound = 0.0;
        let engine = || Engine {
            config: SchedulerConfig { max_running: 2, ..SchedulerConfig::default() },
            max_gap: Duration::ZERO,
            served: "sjf".parse().expect("a policy"),
            others: vec![PolicyKind::Fcfs, "sjf".parse().expect("a policy"), bounded, unbounded],
            pace: StepPace { fixed_s: 1e-3, row_s: 1e-4, prefill_token_s: 1e-5 },
        };
        // The machine was slower than the pace of now says.
        let sjf = "sjf".parse().expect("a policy");
        let latency_s = simulate(&jobs, &engine(), sjf, 1.7).expect("a run").mean_s;
        let mut traffic = Traffic::default();
        traffic.keep(1.0, sjf, &what_if);
        jobs.into_iter().for_each(|job| traffic.push(Answered { job, latency_s }));
        traffic.compare(&what_if, || panic!("no viewer looks"));
        assert!(what_if.ask().is_none());
        traffic.compare(&what_if, engine);
        let begin = Instant::now();
        let text = loop {
            if let Some((_, text)) = what_if.ask() {
                break text;
            }
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        };
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let [sjf_s, fcfs_s] =
            [0, 1].map(|at| shown["policies"][at]["mean_s"].as_f64().expect("a number"));
        assert!((sjf_s / latency_s).ln().abs() < SCALE_ERROR && sjf_s < 0.7 * fcfs_s, "{text}");
        assert_eq!((&shown["served"], &shown["requests"]), (&"sjf".into(), &40.into()));
        let names = shown["policies"].as_array().expect("policies").iter().map(|of| &of["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["sjf", "fcfs", "trail", "trail:0.8, tail bound 0"]);
        traffic.keep(2.0, sjf, &what_if);
        assert_eq!(traffic.answers.len(), 40);
        traffic.keep(2.0, PolicyKind::Fcfs, &what_if);
        assert_eq!(traffic.answers.len(), 0, "served by another policy");
        assert_eq!(what_if.ask().expect("an event").1.as_ref(), NONE);
    }

    #[test]
    fn latencies_that_no_step_time_explains_are_not_compared() {
        let engine = Engine {
            config: SchedulerConfig::default(),
            max_gap: Duration::ZERO,
            served: PolicyKind::Fcfs,
            others: vec![],
            pace: StepPace { fixed_s: 1e-3, row_s: 0.0, prefill_token_s: 0.0 },
        };
        let job = Job {
            id: 0,
            arrival_ns: 0,
            prompt_tokens: 8,
            output_tokens: 10,
            max_tokens: 10,
            priority: 0,
            r: None,
            refined: Refined::None,
            block_hashes: [].into(),
        };
        assert!(comparison(std::slice::from_ref(&job), 0.01, &engine).is_some());
        assert!(comparison(&[job], 10.0, &engine).is_none());
    }
}
