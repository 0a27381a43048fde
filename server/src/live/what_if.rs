//! The last minutes' traffic under other policies.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
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
const PAUSE_SHARE: u32 = 50;

/// Time after which a viewer that asked counts as gone.
const VIEWER: Duration = Duration::from_secs(5);

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
        if let Some(text) = text {
            let number = state.last.as_ref().map_or(0, |(number, _)| number + 1);
            state.last = Some((number, text.into()));
        }
    }
}

/// Answers that have ended, oldest first.
#[derive(Default)]
pub(super) struct Traffic(VecDeque<Job>);

impl Traffic {
    pub(super) fn push(&mut self, job: Job) {
        if self.0.len() == MAX_JOBS {
            self.0.pop_front();
        }
        self.0.push_back(job);
    }

    /// Compares the policies on a dedicated thread, if a viewer waits for it.
    pub(super) fn compare(
        &mut self,
        now_s: f64,
        to: &Arc<WhatIf>,
        engine: impl FnOnce() -> Engine,
    ) {
        let oldest_ns = ((now_s - WINDOW.as_secs_f64()).max(0.0) * 1e9) as u64;
        self.0.retain(|job| job.arrival_ns >= oldest_ns);
        if self.0.len() < MIN_JOBS || !to.begin() {
            return;
        }
        let mut jobs: Vec<Job> = self.0.iter().cloned().collect();
        jobs.sort_by_key(|job| job.arrival_ns);
        let (engine, whole) = (engine(), to.clone());
        let thread = std::thread::Builder::new().name("trail-what-if".into());
        let spawned = thread.spawn(move || {
            let begin = Instant::now();
            let text = comparison(&jobs, &engine);
            whole.end(text, begin.elapsed());
        });
        if spawned.is_err() {
            to.end(None, Duration::ZERO);
        }
    }
}

/// The comparison of `jobs`; `None` if one of the simulations fails or takes too long.
fn comparison(jobs: &[Job], engine: &Engine) -> Option<String> {
    let StepPace { fixed_s, row_s, prefill_token_s } = engine.pace;
    let cost = StepCost {
        fixed: (fixed_s * 1e9).max(1.0),
        decode_row: row_s * 1e9,
        prefill_token: prefill_token_s * 1e9,
        context_token: 0.0,
        experts: None,
    };
    let model = StepModel::measured("served", cost, 0.0);
    let simulation =
        Simulation { max_gap: engine.max_gap, ..Simulation::new(engine.config, model) };
    let mut policies = Vec::new();
    for &policy in [engine.served].iter().chain(&engine.others) {
        let name = policy.label();
        if policies.iter().any(|of: &Outcome| of.name == name) {
            continue;
        }
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
        policies.push(Outcome { name, mean_s, p99_s });
    }
    let [first, last] = [jobs.first()?, jobs.last()?].map(|job| job.arrival_ns as f64 * 1e-9);
    let served = engine.served.label();
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
        let mut traffic = Traffic::default();
        for id in 0..40 {
            let output_tokens = if id % 2 == 0 { 200 } else { 10 };
            traffic.push(Job {
                id,
                arrival_ns: id,
                prompt_tokens: 8,
                output_tokens,
                max_tokens: 400,
                r: Some(output_tokens as f32),
                refined: Refined::None,
                block_hashes: [].into(),
            });
        }
        let what_if = Arc::new(WhatIf::default());
        let engine = || Engine {
            config: SchedulerConfig { max_running: 2, ..SchedulerConfig::default() },
            max_gap: Duration::ZERO,
            served: "sjf".parse().expect("a policy"),
            others: vec![PolicyKind::Fcfs, "sjf".parse().expect("a policy")],
            pace: StepPace { fixed_s: 1e-3, row_s: 1e-4, prefill_token_s: 1e-5 },
        };
        traffic.compare(1.0, &what_if, || panic!("no viewer looks"));
        assert!(what_if.ask().is_none());
        traffic.compare(1.0, &what_if, engine);
        let begin = Instant::now();
        let text = loop {
            if let Some((_, text)) = what_if.ask() {
                break text;
            }
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        };
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let [sjf, fcfs] = [0, 1].map(|at| shown["policies"][at]["mean_s"].as_f64());
        assert!(sjf < fcfs.map(|mean| 0.7 * mean), "{text}");
        assert_eq!((&shown["served"], &shown["requests"]), (&"sjf".into(), &40.into()));
        traffic.compare(1e6, &what_if, || panic!("too old"));
        assert_eq!(traffic.0.len(), 0);
    }
}
