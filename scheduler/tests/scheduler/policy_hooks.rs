//! The hooks of [`Policy`], each in a small policy that needs it: when they are called, and what a
//! rank can be made of.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use trail_scheduler::policies::Fcfs;
use trail_scheduler::{
    Key, NewRequest, Phase, PlanRow, Policy, Prediction, RequestId, RequestIdx, RequestState,
    Scheduler, SchedulerConfig,
};

fn request(id: u64, max_tokens: u32) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        prompt_tokens: 4,
        max_tokens,
        arrival_s: 0.0,
        initial_prediction: Some(max_tokens as f32),
        ..NewRequest::default()
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

    fn on_preempted(&mut self, request: &RequestState) {
        self.note(format!("preempted {} {:?}", request.id.0, request.phase));
    }

    fn on_predicted(&mut self, request: &RequestState) {
        self.note(format!("predicted {}", request.id.0));
    }

    fn on_tokens(&mut self, request: &RequestState, generated: u32) {
        self.note(format!("tokens {} {generated}", request.id.0));
    }

    fn on_finished(&mut self, request: &RequestState) {
        self.note(format!("finished {}", request.id.0));
    }
}

#[test]
fn hooks_are_called_once_each_in_this_order() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut scheduler = scheduler(Recorder(Arc::clone(&calls)));
    let first = scheduler.submit(request(7, 2)).unwrap();
    scheduler.submit(request(8, 1)).unwrap();
    run_step(&mut scheduler, 0);
    scheduler.predict(first, Prediction { remaining: 1.0, ..Prediction::default() });
    run_step(&mut scheduler, 1);
    run_step(&mut scheduler, 2);
    scheduler.finish(first); // a second call has no effect
    let calls = calls.lock().unwrap();
    assert_eq!(
        calls[..],
        [
            "reserve 8",
            "submitted 7",
            "submitted 8",
            "step 0 0",
            "scheduled 7 0..4",
            "tokens 7 1",
            "predicted 7",
            "step 1 1",
            "scheduled 7 4..5",
            "tokens 7 1",
            "finished 7",
            "step 2 2",
            "scheduled 8 0..4",
            "tokens 8 1",
            "finished 8",
        ]
    );
}

/// Shortest first, but a request that waits for `BOUND` steps goes first. Waiting requests are in
/// a queue by the step of their submission, so that each step looks at its head alone.
#[derive(Default)]
struct Starvation {
    step: u64,
    /// (step of submission, index, arrival) of the requests that have not run.
    queue: VecDeque<(u64, RequestIdx, u64)>,
    /// Arrival of the last request that has waited for too long.
    starved: Option<u64>,
}

const BOUND: u64 = 5;

impl Policy for Starvation {
    fn name(&self) -> &'static str {
        "starvation"
    }

    fn key(&self, request: &RequestState) -> Key {
        let starved = self.starved.is_some_and(|last| request.seq <= last);
        let class = if starved { Key::OVERDUE } else { Key::OPEN };
        Key::new(class, f64::from(request.remaining().unwrap()), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn on_step(&mut self, step: u64, _now_s: f64) {
        self.step = step;
    }

    fn next_changed(&mut self) -> Option<RequestIdx> {
        let &(submitted, idx, seq) = self.queue.front()?;
        if self.step < submitted + BOUND {
            return None;
        }
        self.queue.pop_front();
        self.starved = Some(seq);
        Some(idx)
    }

    fn on_submitted(&mut self, request: &RequestState) {
        self.queue.push_back((self.step, request.idx, request.seq));
    }

    fn on_finished(&mut self, request: &RequestState) {
        self.queue.retain(|&(_, idx, _)| idx != request.idx);
    }
}

#[test]
fn a_key_may_change_while_a_request_waits() {
    let mut scheduler = scheduler(Starvation::default());
    scheduler.submit(request(1, 100)).unwrap();
    // A shorter request arrives at every step: without the counter, the long one never runs.
    let ran: Vec<u64> = (0..12)
        .map(|step| {
            scheduler.submit(request(0, 1)).unwrap();
            run_step(&mut scheduler, step).unwrap()
        })
        .collect();
    // At step 9 the short ones of steps 1 to 4 have waited for five steps as well.
    assert_eq!(ran, [0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0]);
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
        Key::new(Key::OPEN, f64::from(p90), request.seq)
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

/// Shortest first, one entry a step.
struct OneEntry;

impl Policy for OneEntry {
    fn name(&self) -> &'static str {
        "one-entry"
    }

    fn key(&self, request: &RequestState) -> Key {
        Key::new(Key::OPEN, f64::from(request.max_tokens - request.generated), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn max_entries(&self) -> u32 {
        1
    }
}

#[test]
fn a_policy_may_bound_the_entries_of_a_step() {
    let config = SchedulerConfig { max_running: 2, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config, Box::new(OneEntry)).unwrap();
    let ids = |scheduler: &mut Scheduler, step| -> Vec<u64> {
        let rows = scheduler.plan(step, 0.0).rows.clone();
        scheduler.advance();
        rows.iter().map(|row| scheduler.state(row.idx).id.0).collect()
    };
    for (id, tokens) in [(1, 50), (2, 60)] {
        scheduler.submit(request(id, tokens)).unwrap();
    }
    assert_eq!(ids(&mut scheduler, 0), [1]);
    assert_eq!(ids(&mut scheduler, 1), [1, 2]);
    // Two shorter ones: the first replaces the worst, the second enters a step later.
    for (id, tokens) in [(3, 10), (4, 20)] {
        scheduler.submit(request(id, tokens)).unwrap();
    }
    assert_eq!(ids(&mut scheduler, 2), [3, 1]);
    assert_eq!(ids(&mut scheduler, 3), [3, 4]);
}
