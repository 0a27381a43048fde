//! The hooks of [`Policy`] that no built-in policy uses, each in a small policy that needs it: when
//! they are called, and what a rank can be made of.

use std::sync::{Arc, Mutex};

use trail_scheduler::policies::Fcfs;
use trail_scheduler::{
    Key, NewRequest, Phase, PlanRow, Policy, Prediction, RequestId, RequestState, Scheduler,
    SchedulerConfig,
};

fn request(id: u64, max_tokens: u32) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        prompt_tokens: 4,
        max_tokens,
        arrival_s: 0.0,
        initial_prediction: Some(max_tokens as f32),
        true_length: None,
    }
}

/// One request at a time, with room for the KV of all.
fn scheduler(policy: impl Policy + 'static) -> Scheduler {
    let config = SchedulerConfig { max_running: 1, max_requests: 8, ..SchedulerConfig::default() };
    Scheduler::new(config, Box::new(policy)).unwrap()
}

/// Plans and carries out `step`. Returns the id of the request that ran, and finishes it at its
/// `max_tokens`.
fn run_step(scheduler: &mut Scheduler, step: u64) -> Option<u64> {
    let row = scheduler.plan(step, step as f64).rows.first().copied()?;
    scheduler.advance();
    let request = scheduler.state(row.idx);
    let (id, done) = (request.id.0, request.generated == request.max_tokens);
    if done {
        scheduler.finish(row.idx);
    }
    Some(id)
}

/// First come, first served; records its calls.
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn note(&self, call: String) {
        self.0.lock().unwrap().push(call);
    }
}

impl Policy for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn key(&self, request: &RequestState) -> Key {
        Fcfs.key(request)
    }

    fn preemptable(&self, request: &RequestState) -> bool {
        Fcfs.preemptable(request)
    }

    fn ages(&self) -> bool {
        true
    }

    fn reserve(&mut self, max_requests: u32) {
        self.note(format!("reserve {max_requests}"));
    }

    fn on_step(&mut self, step: u64, now_s: f64) {
        self.note(format!("step {step} {now_s}"));
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.note(format!("submitted {}", request.id.0));
    }

    fn on_scheduled(&mut self, request: &RequestState, row: PlanRow) {
        self.note(format!("scheduled {} {}..{}", request.id.0, row.start, row.start + row.len));
    }

    fn on_skipped(&mut self, request: &RequestState) {
        self.note(format!("skipped {}", request.id.0));
    }

    fn on_tokens(&mut self, request: &RequestState, generated: u32) {
        self.note(format!("tokens {} {generated}", request.id.0));
    }
}

#[test]
fn hooks_are_called_once_each_in_this_order() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut scheduler = scheduler(Recorder(Arc::clone(&calls)));
    scheduler.submit(request(7, 1)).unwrap();
    scheduler.submit(request(8, 1)).unwrap();
    run_step(&mut scheduler, 0);
    run_step(&mut scheduler, 1);
    let calls = calls.lock().unwrap();
    assert_eq!(
        calls[..],
        [
            "reserve 8",
            "submitted 7",
            "submitted 8",
            "step 0 0",
            "scheduled 7 0..4",
            "skipped 8",
            "tokens 7 1",
            "step 1 1",
            "scheduled 8 0..4",
            "tokens 8 1",
        ]
    );
}

/// Shortest first, but a request skipped for `BOUND` steps in a row goes first (the starvation
/// counter of LTR, arXiv 2408.15792).
#[derive(Default)]
struct Starvation {
    skipped: Vec<u32>,
}

const BOUND: u32 = 5;

impl Policy for Starvation {
    fn name(&self) -> &'static str {
        "starvation"
    }

    fn key(&self, request: &RequestState) -> Key {
        let starved = self.skipped[request.idx.index()] >= BOUND;
        let value = if starved { 0.0 } else { request.remaining().unwrap() };
        Key::new(Key::OPEN, value, request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn ages(&self) -> bool {
        true
    }

    fn reserve(&mut self, max_requests: u32) {
        self.skipped = vec![0; max_requests as usize];
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.skipped[request.idx.index()] = 0;
    }

    fn on_scheduled(&mut self, request: &RequestState, _row: PlanRow) {
        self.skipped[request.idx.index()] = 0;
    }

    fn on_skipped(&mut self, request: &RequestState) {
        self.skipped[request.idx.index()] += 1;
    }
}

#[test]
fn keys_of_waiting_requests_may_change_with_every_step() {
    let mut scheduler = scheduler(Starvation::default());
    scheduler.submit(request(1, 100)).unwrap();
    // A shorter request arrives at every step: without the counter, the long one never runs.
    let ran: Vec<u64> = (0..12)
        .map(|step| {
            scheduler.submit(request(0, 1)).unwrap();
            run_step(&mut scheduler, step).unwrap()
        })
        .collect();
    assert_eq!(ran, [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
}

/// Round robin by slices of two output tokens.
struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn key(&self, request: &RequestState) -> Key {
        let value = match request.phase {
            Phase::Running if request.slice_tokens < 2 => -1.0,
            Phase::Running => 1.0,
            _ => 0.0,
        };
        Key::new(Key::OPEN, value, request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }
}

#[test]
fn a_slice_begins_when_a_request_enters_the_batch() {
    let mut scheduler = scheduler(RoundRobin);
    scheduler.submit(request(1, 100)).unwrap();
    scheduler.submit(request(2, 100)).unwrap();
    let ran: Vec<u64> = (0..8).map(|step| run_step(&mut scheduler, step).unwrap()).collect();
    assert_eq!(ran, [1, 1, 2, 2, 1, 1, 2, 2]);
}

/// Ranks by the 90 % quantile of the remaining tokens.
struct Cautious;

impl Policy for Cautious {
    fn name(&self) -> &'static str {
        "cautious"
    }

    fn key(&self, request: &RequestState) -> Key {
        let p90 = request.prediction.map_or(f32::INFINITY, |prediction| prediction.p90);
        Key::new(Key::OPEN, p90, request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }
}

#[test]
fn a_policy_may_rank_by_the_quantiles_of_a_prediction() {
    let mut scheduler = scheduler(Cautious);
    for (id, p90) in [(1, 200.0), (2, 60.0)] {
        let idx = scheduler.submit(request(id, 300)).unwrap();
        let (remaining, p10, p50) = (50.0, 10.0, 45.0);
        let prediction = Prediction { remaining, p10, p50, p90, step: 0, generation: 0 };
        scheduler.predict(idx, prediction);
        assert_eq!(scheduler.state(idx).prediction, Some(prediction));
    }
    assert_eq!(run_step(&mut scheduler, 0), Some(2));
}
