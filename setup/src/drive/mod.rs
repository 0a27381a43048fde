//! Drives one engine through one workload: submits at the arrival times, collects the events.

mod progress;

use std::time::{Duration, Instant};

use trail_runtime::engine::{Engine, Event, FinishReason, Request, RequestHandle};

use crate::error::Error;
pub use progress::Display;

/// How often arrivals and events are looked at. Bounds the error of every latency; short beside the seconds
/// that are measured, long beside the work of looking.
const TICK: Duration = Duration::from_millis(2);

/// One request of the workload.
#[derive(Clone)]
pub struct Job {
    /// What is asked.
    pub request: Request,
    /// When it arrives, seconds after the start.
    pub arrival_s: f64,
}

/// What became of one request.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Output tokens.
    pub tokens: Vec<u32>,
    /// Seconds from arrival to first token.
    pub ttft_s: f64,
    /// Seconds from arrival to last token.
    pub latency_s: f64,
    /// Refined predictions: (tokens generated, expected remaining).
    pub predictions: Vec<(u32, f32)>,
    /// Whether it stopped by itself.
    pub stopped: bool,
}

/// What the live display shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Requests that have arrived.
    pub arrived: usize,
    /// Requests answered.
    pub finished: usize,
    /// Tokens generated.
    pub tokens: u64,
    /// Total output length first predicted and found, of the last request answered.
    pub last: Option<(f32, u32)>,
}

/// One request under way.
struct Flight {
    index: usize,
    arrival: Instant,
    handle: RequestHandle,
}

/// Runs `jobs` (in order of arrival) to the end; `show` is called now and then.
///
/// Returns the outcomes in the order of `jobs`, and the seconds from first arrival to last token.
pub fn drive(
    engine: &Engine,
    jobs: &[Job],
    mut show: impl FnMut(&Progress),
) -> Result<(Vec<Outcome>, f64), Error> {
    let mut outcomes = vec![Outcome::default(); jobs.len()];
    let mut flights: Vec<Flight> = Vec::with_capacity(jobs.len());
    let mut progress = Progress::default();
    let start = Instant::now();
    let mut next = 0;
    while progress.finished < jobs.len() {
        let now_s = start.elapsed().as_secs_f64();
        while next < jobs.len() && jobs[next].arrival_s <= now_s {
            let handle = engine
                .submit(jobs[next].request.clone())
                .map_err(|error| Error::failed(format!("request {next} was refused: {error}")))?;
            let arrival = start + Duration::from_secs_f64(jobs[next].arrival_s);
            flights.push(Flight { index: next, arrival, handle });
            next += 1;
        }
        progress.arrived = next;
        let now = Instant::now();
        let mut index = 0;
        while index < flights.len() {
            let flight = &flights[index];
            let outcome = &mut outcomes[flight.index];
            match collect(flight, outcome, now, &mut progress)? {
                true => drop(flights.swap_remove(index)),
                false => index += 1,
            }
        }
        show(&progress);
        std::thread::sleep(TICK);
    }
    let first = jobs.first().map_or(0.0, |job| job.arrival_s);
    Ok((outcomes, start.elapsed().as_secs_f64() - first))
}

/// Takes the events that are there; true once the request is answered.
fn collect(
    flight: &Flight,
    outcome: &mut Outcome,
    now: Instant,
    progress: &mut Progress,
) -> Result<bool, Error> {
    while let Some(event) = flight.handle.try_recv() {
        match event {
            Event::Token { id, .. } => {
                if outcome.tokens.is_empty() {
                    outcome.ttft_s = (now - flight.arrival).as_secs_f64();
                }
                outcome.tokens.push(id);
                progress.tokens += 1;
            }
            Event::Prediction { generated, remaining } => {
                outcome.predictions.push((generated, remaining));
            }
            Event::Finished { reason } => {
                if !matches!(reason, FinishReason::Stop | FinishReason::Length) {
                    let message =
                        format!("request {} ended early: {}", flight.index, reason.name());
                    return Err(Error::failed(message));
                }
                outcome.stopped = reason == FinishReason::Stop;
                outcome.latency_s = (now - flight.arrival).as_secs_f64();
                progress.finished += 1;
                let first = outcome.predictions.first();
                progress.last = first.map(|&(_, total)| (total, outcome.tokens.len() as u32));
                return Ok(true);
            }
            Event::Alternative { .. } | Event::Preempted { .. } => {}
        }
    }
    Ok(false)
}
