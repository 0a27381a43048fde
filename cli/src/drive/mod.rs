//! Runs one workload on one engine: submits at the arrival times, collects the events.
//!
//! By the wall clock the engine has its own thread ([`run_on_wall_clock`]). By simulated time
//! ([`run_on_step_clock`]) one thread does it all: submit what has arrived, step the engine,
//! time-stamp the tokens; an idle engine advances the clock to the next arrival.

mod clock_fit;
mod outcome;
mod progress;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trail_platform::delivery::Delivery;
use trail_runtime::engine::{
    Clock, Engine, Event, FinishReason, NonFiniteLogits, Request, RequestHandle, StepClock,
    StepOutcome, SteppedEngine,
};

use crate::error::Error;
pub use clock_fit::ClockFit;
pub use outcome::RequestOutcome;
pub use progress::{Display, Progress};

/// Interval at which arrivals and events are polled by the wall clock. Bounds the error of every
/// latency: short beside the seconds that are measured, long beside the cost of polling.
const TICK: Duration = Duration::from_millis(2);

/// One request of the workload.
#[derive(Clone)]
pub struct TimedRequest {
    /// The request.
    pub request: Request,
    /// Arrival, seconds after the start. A later turn arrives when the turn before has ended.
    pub arrival_s: f64,
    /// Index of the turn before, of a later turn of a conversation: its prompt and answer come
    /// before the request's prompt.
    pub follows: Option<usize>,
}

impl TimedRequest {
    /// A request that follows no other.
    pub fn first(request: Request, arrival_s: f64) -> TimedRequest {
        TimedRequest { request, arrival_s, follows: None }
    }

    fn arrival_ns(&self) -> u64 {
        (self.arrival_s * 1e9).round() as u64
    }
}

/// A completed run.
#[derive(Clone, Debug)]
pub struct DriveRun {
    /// In the order of the jobs.
    pub outcomes: Vec<RequestOutcome>,
    /// From the first arrival to the last token, seconds.
    pub makespan_s: f64,
    /// Tokens generated per second while requests waited; of the whole run if none ever did.
    pub saturated_tokens_per_s: f64,
    /// The machine's time against the simulated one; `None` by the wall clock.
    pub fit: Option<ClockFit>,
}

/// Runs `jobs`, those that follow no other first and in order of arrival, on an engine with its own
/// thread. `show` is called at each poll.
pub fn run_on_wall_clock(
    engine: &Engine,
    jobs: &[TimedRequest],
    mut show: impl FnMut(&Progress),
) -> Result<DriveRun, Error> {
    let mut workload = Workload::new(jobs);
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    while !workload.is_finished() {
        workload.submit_arrived(engine, now_ns())?;
        workload.collect(engine, now_ns())?;
        show(&workload.progress);
        std::thread::sleep(TICK);
    }
    Ok(workload.into_run(now_ns(), None))
}

/// Runs `jobs`, those that follow no other first and in order of arrival, by `clock`, which must be
/// the engine's. `show` is called at each step.
pub fn run_on_step_clock(
    engine: &mut SteppedEngine,
    clock: &StepClock,
    jobs: &[TimedRequest],
    mut show: impl FnMut(&Progress, &Engine),
) -> Result<DriveRun, Error> {
    let mut workload = Workload::new(jobs);
    let mut fit = ClockFit::default();
    while !workload.is_finished() {
        let before_ns = clock.now_ns();
        workload.submit_arrived(engine, before_ns)?;
        let wall = Instant::now();
        let outcome = engine.step().map_err(|fault| Error::failed(fault.to_string()))?;
        match (outcome, workload.next_arrival_ns()) {
            (StepOutcome::Ran, _) => fit.add(clock.now_ns() - before_ns, wall.elapsed()),
            (StepOutcome::Transferring, arrival) => {
                // By the earlier of the two; a transfer is always in flight here.
                let ns = engine.next_transfer_ns().into_iter().chain(arrival).min();
                clock.advance_to(ns.unwrap_or(0));
            }
            (StepOutcome::Idle, Some(ns)) => clock.advance_to(ns),
            (StepOutcome::Idle, None) if workload.in_flight.is_empty() => {}
            (StepOutcome::Idle, None) => {
                return Err(Error::failed("the engine is idle with requests unanswered"));
            }
        }
        workload.collect(engine, clock.now_ns())?;
        show(&workload.progress, engine);
    }
    Ok(workload.into_run(clock.now_ns(), Some(fit)))
}

/// A submitted and unfinished request.
struct InFlight {
    index: usize,
    handle: RequestHandle,
    arrival_ns: u64,
    /// Time of the last token, or of the arrival before the first, nanoseconds.
    delivery: Delivery,
}

/// A workload during its run.
struct Workload<'a> {
    jobs: &'a [TimedRequest],
    outcomes: Vec<RequestOutcome>,
    in_flight: Vec<InFlight>,
    /// Index of the next job to submit, of those that follow no other.
    next: usize,
    /// The turn after each job.
    next_turns: HashMap<usize, usize>,
    /// Prompts of the jobs that have a next turn, as submitted.
    prompts: HashMap<usize, Vec<u32>>,
    progress: Progress,
    /// Tokens generated, and time, when a request last waited.
    saturated: (u64, u64),
}

impl<'a> Workload<'a> {
    fn new(jobs: &'a [TimedRequest]) -> Workload<'a> {
        let turns = jobs.iter().enumerate().filter_map(|(turn, job)| Some((job.follows?, turn)));
        Workload {
            jobs,
            outcomes: vec![RequestOutcome::default(); jobs.len()],
            in_flight: Vec::with_capacity(jobs.len()),
            next: 0,
            next_turns: turns.collect(),
            prompts: HashMap::new(),
            progress: Progress::default(),
            saturated: (0, 0),
        }
    }

    fn is_finished(&self) -> bool {
        self.progress.finished == self.jobs.len()
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        let first_turn = self.jobs.get(self.next).filter(|job| job.follows.is_none());
        first_turn.map(TimedRequest::arrival_ns)
    }

    /// Submits the jobs that have arrived by `now_ns`.
    fn submit_arrived(&mut self, engine: &Engine, now_ns: u64) -> Result<(), Error> {
        while let Some(arrival_ns) = self.next_arrival_ns().filter(|&ns| ns <= now_ns) {
            self.submit(engine, self.next, Vec::new(), arrival_ns)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Submits the job at `index`, whose prompt begins with `history`.
    fn submit(
        &mut self,
        engine: &Engine,
        index: usize,
        mut history: Vec<u32>,
        arrival_ns: u64,
    ) -> Result<(), Error> {
        let mut request = self.jobs[index].request.clone();
        history.append(&mut request.prompt);
        request.prompt = history;
        if self.next_turns.contains_key(&index) {
            self.prompts.insert(index, request.prompt.clone());
        }
        let handle = engine
            .submit(request)
            .map_err(|error| Error::refused(&format!("request {index}: "), &error))?;
        self.in_flight.push(InFlight { index, handle, arrival_ns, delivery: Delivery::default() });
        self.progress.arrived += 1;
        Ok(())
    }

    /// Submits the turn after the ended job at `index`, if any.
    fn submit_next_turn(
        &mut self,
        engine: &Engine,
        index: usize,
        now_ns: u64,
    ) -> Result<(), Error> {
        let Some(turn) = self.next_turns.remove(&index) else { return Ok(()) };
        let mut history = self.prompts.remove(&index).expect("kept since its submission");
        history.extend(&self.outcomes[index].tokens);
        self.submit(engine, turn, history, now_ns)
    }

    /// Takes the events that have come by `now_ns`.
    fn collect(&mut self, engine: &Engine, now_ns: u64) -> Result<(), Error> {
        let mut at = 0;
        while at < self.in_flight.len() {
            match self.collect_one(at, now_ns)? {
                true => {
                    let InFlight { index, .. } = self.in_flight.swap_remove(at);
                    self.submit_next_turn(engine, index, now_ns)?;
                }
                false => at += 1,
            }
        }
        if engine.stats().waiting > 0 {
            self.saturated = (self.progress.tokens, now_ns);
        }
        Ok(())
    }

    /// Takes the events of one request. Returns whether it is finished.
    fn collect_one(&mut self, at: usize, now_ns: u64) -> Result<bool, Error> {
        let in_flight = &mut self.in_flight[at];
        let outcome = &mut self.outcomes[in_flight.index];
        let since_arrival_s = now_ns.saturating_sub(in_flight.arrival_ns) as f64 * 1e-9;
        while let Some(event) = in_flight.handle.try_recv() {
            match event {
                Event::Token { id, .. } => {
                    if outcome.tokens.is_empty() {
                        outcome.ttft_s = since_arrival_s;
                    }
                    in_flight.delivery.token(now_ns);
                    outcome.longest_gap_s = in_flight.delivery.longest_gap_s();
                    outcome.smooth_s = in_flight.delivery.smooth_s();
                    outcome.tokens.push(id);
                    self.progress.tokens += 1;
                }
                Event::Prediction { generated, remaining } => {
                    outcome.predictions.push((generated, remaining));
                }
                Event::Finished { reason } => {
                    if !matches!(reason, FinishReason::Stop | FinishReason::Length) {
                        let index = in_flight.index;
                        let reason = match reason {
                            FinishReason::Error => NonFiniteLogits.to_string(),
                            other => other.name().to_owned(),
                        };
                        return Err(Error::failed(format!(
                            "request {index} ended early: {reason}"
                        )));
                    }
                    outcome.stopped = reason == FinishReason::Stop;
                    outcome.latency_s = since_arrival_s;
                    outcome.cached_tokens = in_flight.handle.cached_tokens();
                    self.progress.finished += 1;
                    let first = outcome.predictions.first();
                    self.progress.last =
                        first.map(|&(_, total)| (total, outcome.tokens.len() as u32));
                    return Ok(true);
                }
                Event::PromptToken { .. } | Event::Alternative { .. } | Event::Preempted { .. } => {
                }
            }
        }
        Ok(false)
    }

    fn into_run(self, end_ns: u64, fit: Option<ClockFit>) -> DriveRun {
        let first_ns = self.jobs.first().map_or(0, TimedRequest::arrival_ns);
        let makespan_s = end_ns.saturating_sub(first_ns) as f64 * 1e-9;
        let (tokens, ns) = match self.saturated {
            (0, _) | (_, 0) => (self.progress.tokens, end_ns.max(1)),
            saturated => saturated,
        };
        let saturated_tokens_per_s = tokens as f64 / (ns as f64 * 1e-9);
        DriveRun { outcomes: self.outcomes, makespan_s, saturated_tokens_per_s, fit }
    }
}
