//! The thread that watches an engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use trail_runtime::engine::{Clock, Counters, Engine, LiveBoard, LiveSnapshot, PolicyKind};
use trail_scheduler::{Decision, LiveRequest, Phase, SchedulerConfig};
use trail_simulator::forecast::{ArrivalForecaster, Forecast, Forecaster, Queue};

use super::frame::{LiveFrame, LiveRow};
use super::history::{History, Point};
use super::what_if::{self, Traffic, WhatIf};
use super::{LiveEvent, Owner};
use crate::policy_defaults::PolicyDefaults;

/// Time between two frames.
const PERIOD: Duration = Duration::from_millis(100);

/// Time between two frames without live answers.
const IDLE_PERIOD: Duration = Duration::from_secs(2);

/// Time between two looks for a snapshot that was asked for.
const POLL: Duration = Duration::from_millis(5);

/// Time of the thread that a time of estimating takes.
const ESTIMATE_SHARE: u32 = 100;

/// Decisions of an answer that are kept: the last ones.
const MAX_DECISIONS: usize = 64;

/// Owner and decisions of a live answer, beside its state in the engine.
#[derive(Default)]
struct Known {
    owner: Option<Arc<Owner>>,
    decisions: Arc<Vec<Decision>>,
}

pub(super) struct Watcher {
    inbox: Receiver<LiveEvent>,
    frames: watch::Sender<Arc<LiveFrame>>,
    board: Arc<LiveBoard>,
    counters: Arc<Counters>,
    kv_blocks: u64,
    clock: Arc<dyn Clock>,
    snapshot: LiveSnapshot,
    known: HashMap<u64, Known>,
    queue: Queue,
    forecaster: Forecaster,
    forecasts: HashMap<u64, Forecast>,
    /// Time on the engine's clock at which the forecasts were made.
    forecast_s: f64,
    next_estimate: Instant,
    history: Arc<History>,
    traffic: Traffic,
    what_if: Arc<WhatIf>,
    compared: Compared,
    number: u64,
    /// True once [`LiveEvent::Stop`] came.
    stopped: bool,
}

/// Fixed settings of an engine whose traffic is compared.
struct Compared {
    config: SchedulerConfig,
    max_gap: Duration,
    /// Policies that the engine could have.
    others: Vec<PolicyKind>,
}

/// Policies that others are compared with: the plainest, and the best by the prompt and by the
/// answer.
const COMPARED: [&str; 3] = ["fcfs", "sjf", "trail"];

impl Watcher {
    pub(super) fn new(
        engine: &Engine,
        policies: PolicyDefaults,
        inbox: Receiver<LiveEvent>,
        frames: watch::Sender<Arc<LiveFrame>>,
        what_if: Arc<WhatIf>,
    ) -> Watcher {
        let (max_running, num_blocks) = (engine.max_running() as u32, engine.kv_blocks() as u32);
        let sizes = SchedulerConfig { max_running, num_blocks, ..SchedulerConfig::default() };
        let policy: PolicyKind = engine.policy();
        let mut watcher = Watcher {
            inbox,
            frames,
            board: engine.live_board().clone(),
            counters: engine.counters().clone(),
            kv_blocks: u64::from(num_blocks),
            clock: engine.clock().clone(),
            snapshot: LiveSnapshot::default(),
            known: HashMap::new(),
            queue: Queue::new(&sizes, policy),
            forecaster: Forecaster::new(0),
            forecasts: HashMap::new(),
            forecast_s: 0.0,
            next_estimate: Instant::now(),
            history: Arc::default(),
            traffic: Traffic::default(),
            what_if,
            compared: Compared {
                // Prompts have no hashes here.
                config: SchedulerConfig {
                    cached_blocks: 0,
                    host_blocks: 0,
                    ..*engine.scheduler_config()
                },
                max_gap: engine.max_gap().unwrap_or_default(),
                others: COMPARED
                    .iter()
                    .filter_map(|name| policies.policy(name).ok())
                    .filter(|&policy| engine.check_policy(policy).is_ok())
                    .collect(),
            },
            number: 0,
            stopped: false,
        };
        // A reader may come before the thread has begun.
        watcher.publish_idle();
        watcher
    }

    /// Runs until [`LiveEvent::Stop`].
    pub(super) fn run(mut self) {
        let mut next = Instant::now();
        while !self.stopped {
            let wait = match self.known.is_empty() {
                true => IDLE_PERIOD,
                false => next.saturating_duration_since(Instant::now()),
            };
            match self.inbox.recv_timeout(wait) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(event) => self.hear(event),
                Err(RecvTimeoutError::Timeout) if !self.known.is_empty() => {
                    // A look waits for the end of a step, which is not added to the period.
                    next = (next + PERIOD).max(Instant::now());
                    self.look();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.known.is_empty() {
                self.publish_idle();
            }
        }
    }

    fn hear(&mut self, event: LiveEvent) {
        match event {
            LiveEvent::Arrived { id, at_s, owner, estimate } => {
                self.known.entry(id).or_default().owner = Some(Arc::new(*owner));
                self.forecaster.arrived(id, at_s, estimate.as_deref());
            }
            LiveEvent::Began { id, at_s } => self.forecaster.began(id, at_s),
            LiveEvent::Ended { id, at_s, answer, job } => {
                job.into_iter().for_each(|job| self.traffic.push(*job));
                self.known.remove(&id);
                self.forecasts.remove(&id);
                self.forecaster.ended(id, at_s, answer);
            }
            LiveEvent::Stop => self.stopped = true,
        }
    }

    /// Takes a snapshot, and publishes what it shows.
    fn look(&mut self) {
        self.board.ask();
        let deadline = Instant::now() + PERIOD;
        while !self.board.take(&mut self.snapshot) {
            if Instant::now() >= deadline {
                return;
            }
            if let Ok(event) = self.inbox.recv_timeout(POLL) {
                self.hear(event);
            }
            if self.stopped {
                return;
            }
        }
        let mut decisions = std::mem::take(&mut self.snapshot.decisions);
        for decision in decisions.drain(..) {
            if let Some(known) = self.known.get_mut(&decision.request.0) {
                let kept = Arc::make_mut(&mut known.decisions);
                if kept.len() == MAX_DECISIONS {
                    kept.remove(0);
                }
                kept.push(decision);
            }
        }
        self.snapshot.decisions = decisions;
        self.snapshot.requests.sort_unstable_by_key(|request| request.key);
        self.estimate();
        self.compare();
        let arrivals = Arc::new(self.forecaster.arrivals(&self.queue));
        let rows = self.rows(&arrivals);
        self.publish(self.snapshot.now_s, rows, arrivals);
    }

    /// Estimates times again, if the last estimate was cheap enough.
    fn estimate(&mut self) {
        let begin = Instant::now();
        if begin < self.next_estimate || !self.snapshot.pace.is_known() {
            return;
        }
        let LiveSnapshot { now_s, pace, overdue_after_s, policy, .. } = self.snapshot;
        let queue = &mut self.queue;
        queue.set_policy(policy);
        (queue.now_s, queue.pace, queue.overdue_after_s) = (now_s, pace, overdue_after_s);
        queue.requests.clone_from(&self.snapshot.requests);
        let forecasts = self.forecaster.estimate(queue);
        self.forecasts = forecasts.iter().map(|of| (of.id, *of)).collect();
        self.forecast_s = now_s;
        self.next_estimate = begin + ESTIMATE_SHARE * begin.elapsed();
    }

    /// Compares policies on the last minutes' traffic, if a viewer waits for it.
    fn compare(&mut self) {
        let LiveSnapshot { now_s, pace, policy, .. } = self.snapshot;
        let Compared { config, max_gap, others } = &self.compared;
        self.traffic.keep(now_s, policy, &self.what_if);
        self.traffic.compare(&self.what_if, || what_if::Engine {
            config: *config,
            max_gap: *max_gap,
            served: policy,
            others: others.clone(),
            pace,
        });
    }

    /// The rows, those in the batch first.
    fn rows(&self, arrivals: &ArrivalForecaster) -> Vec<LiveRow> {
        let requests = &self.snapshot.requests;
        let in_batch = |of: &&LiveRequest| of.phase == Phase::Running;
        let batch = requests.iter().filter(in_batch).map(|request| (0, request));
        let waiting = (1..).zip(requests.iter().filter(|of| !in_batch(of)));
        let step_s = self.snapshot.pace.step_s(requests.iter().filter(in_batch).count());
        batch.chain(waiting).map(|(place, of)| self.row(of, place, arrivals, step_s)).collect()
    }

    fn row(
        &self,
        request: &LiveRequest,
        place: usize,
        arrivals: &ArrivalForecaster,
        step_s: f64,
    ) -> LiveRow {
        let id = request.id.0;
        let known = self.known.get(&id);
        let tokens = match request.quantiles {
            Some([low, median, high]) => [low, median, high].map(f64::from),
            None => {
                let length = arrivals.length(request.max_tokens, request.first_prediction);
                let generated = f64::from(request.generated);
                let left = length.left(generated);
                [left.low, left.median, left.high]
            }
        };
        let [low, median, high] = tokens;
        let elapsed_s = self.snapshot.now_s - self.forecast_s;
        let mut row = LiveRow {
            request: *request,
            owner: known.and_then(|known| known.owner.clone()),
            place,
            remaining: Some(median as f32),
            interval: Some([low as f32, high as f32]),
            step_s,
            forecast: self.forecasts.get(&id).copied(),
            decisions: known.map(|known| known.decisions.clone()).unwrap_or_default(),
        };
        let last = row.last(elapsed_s, 0);
        if let Some((forecast, last)) = row.forecast.as_mut().zip(last).filter(|_| elapsed_s > 0.0)
        {
            let first = forecast.first.filter(|_| request.generated == 0);
            forecast.first = first.map(|at| at.after(elapsed_s));
            forecast.last = last;
        }
        row
    }

    /// Publishes a frame without answers.
    fn publish_idle(&mut self) {
        self.queue.requests.clear();
        self.queue.now_s = self.clock.now_s();
        let begin = Instant::now();
        if begin >= self.next_estimate {
            self.forecaster.estimate(&self.queue);
            self.next_estimate = begin + ESTIMATE_SHARE * begin.elapsed();
        }
        let arrivals = Arc::new(self.forecaster.arrivals(&self.queue));
        self.publish(self.queue.now_s, Vec::new(), arrivals);
    }

    fn publish(&mut self, now_s: f64, rows: Vec<LiveRow>, arrivals: Arc<ArrivalForecaster>) {
        let stats = self.counters.snapshot(self.kv_blocks);
        let running = rows.iter().filter(|row| row.place == 0).count();
        if self.history.is_due(now_s) {
            let waiting = rows.len() - running;
            Arc::make_mut(&mut self.history).push(Point { now_s, running, waiting, stats });
        }
        self.number += 1;
        let places = rows.iter().enumerate().map(|(at, row)| (row.request.id.0, at)).collect();
        let frame = LiveFrame {
            number: self.number,
            now_s,
            places,
            arrivals,
            coverage: self.forecaster.coverage(),
            batch: (running, self.queue.max_running),
            blocks: (stats.blocks_used, self.kv_blocks),
            history: self.history.clone(),
            stats,
            rows,
        };
        self.frames.send_replace(Arc::new(frame));
    }
}
