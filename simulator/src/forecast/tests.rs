use super::*;
use trail_scheduler::policies::{PolicyKind, Ranking, Trail};
use trail_scheduler::{
    LiveRequest, NewRequest, Prediction, RequestId, Scheduler, SchedulerConfig, StepPace,
};

/// A step of a millisecond, whatever its rows.
const PACE: StepPace = StepPace { fixed_s: 1e-3, row_s: 0.0, prefill_token_s: 1e-4 };

/// Requests of `lengths` predicted output tokens in a scheduler of `max_running` places; those in
/// the batch have had a token, and posteriors that are sure.
fn queue(policy: &str, max_running: u32, lengths: &[f32]) -> Queue {
    let policy: PolicyKind = policy.parse().expect("a policy");
    let config = SchedulerConfig { max_running, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config, policy.build()).expect("valid");
    for (id, &tokens) in (0..).zip(lengths) {
        let request = NewRequest {
            id: RequestId(id),
            prompt_tokens: 10,
            max_tokens: 1000,
            initial_prediction: Some(tokens),
            ..NewRequest::default()
        };
        scheduler.submit(request).expect("fits");
    }
    scheduler.plan(1, 0.0);
    let rows = scheduler.last_plan().rows.clone();
    scheduler.advance();
    for row in rows {
        let remaining = scheduler.state(row.idx).remaining().expect("predicted") + 1.0;
        let generation = scheduler.generation(row.idx);
        let (p10, p50, p90) = (remaining, remaining, remaining);
        let sure = Prediction { remaining, p10, p50, p90, step: 1, generation };
        scheduler.predict(row.idx, sure);
    }
    let mut requests: Vec<LiveRequest> = scheduler.live_requests().collect();
    requests.sort_by_key(|request| request.key);
    Queue { requests, pace: PACE, ..Queue::new(&config, policy) }
}

/// A forecaster that has seen answers as long as predicted, and no arrivals.
fn forecaster() -> Forecaster {
    let mut forecaster = Forecaster::new(1);
    for id in 0..20 {
        let answer = Answer { prompt_tokens: 10, length: 50, predicted: Some(50.0), priority: 0 };
        forecaster.ended(id, 0.0, Some(answer));
    }
    forecaster
}

/// Numbers of the requests and the medians of their last tokens, seconds.
fn medians(policy: &str, max_running: u32, lengths: &[f32]) -> Vec<(u64, f64)> {
    let queue = queue(policy, max_running, lengths);
    let mut forecaster = forecaster();
    let forecasts = forecaster.estimate(&queue);
    forecasts.iter().map(|of| (of.id, of.last.median)).collect()
}

fn close(medians: &[(u64, f64)], expected: &[(u64, f64)]) {
    assert_eq!(medians.len(), expected.len());
    for (got, want) in medians.iter().zip(expected) {
        // All lengths of a sample have an error in common.
        assert!(got.0 == want.0 && (got.1 / want.1 - 1.0).abs() < 0.2, "{medians:?} {expected:?}");
    }
}

#[test]
fn places_are_taken_in_the_order_of_the_policy() {
    let lengths = [100.0, 300.0, 50.0];
    close(&medians("fcfs", 3, &lengths), &[(0, 0.1), (1, 0.3), (2, 0.05)]);
    close(&medians("fcfs", 1, &lengths), &[(0, 0.1), (1, 0.4), (2, 0.45)]);
    close(&medians("sjf", 1, &lengths), &[(2, 0.05), (0, 0.15), (1, 0.45)]);
    close(&medians("fcfs", 2, &lengths), &[(0, 0.1), (1, 0.3), (2, 0.15)]);
}

#[test]
fn a_first_token_comes_with_a_place() {
    let queue = queue("fcfs", 1, &[100.0, 300.0, 50.0]);
    let mut forecaster = forecaster();
    let first: Vec<_> = forecaster.estimate(&queue).iter().map(|of| of.first).collect();
    assert_eq!(first[0], None, "it was sent");
    let medians = [1, 2].map(|at| first[at].expect("it waits").median);
    assert!(
        (0.08..0.12).contains(&medians[0]) && (0.32..0.48).contains(&medians[1]),
        "{medians:?}"
    );
}

#[test]
fn arrivals_take_places_under_a_policy_by_length_and_none_by_arrival() {
    let last_of_all = |policy: &str, rate: f64| {
        let queue = queue(policy, 1, &[200.0, 300.0]);
        let mut forecaster = forecaster();
        for at in 0..200 {
            forecaster.arrived(1000 + at, f64::from(at as i32 - 200) / rate, None);
        }
        let forecasts = forecaster.estimate(&queue).to_vec();
        forecasts.iter().find(|of| of.id == 1).expect("estimated").last.median
    };
    let [fcfs, sjf] = ["fcfs", "sjf"].map(|policy| last_of_all(policy, 15.0));
    assert!((0.4..0.6).contains(&fcfs) && sjf > 1.3 * fcfs, "{fcfs} {sjf}");
}

#[test]
fn an_arrival_is_served_after_those_ranked_before_it() {
    for (policy, places) in [("fcfs", [2, 2]), ("sjf", [0, 2])] {
        let queue = queue(policy, 1, &[20.0, 100.0, 50.0]);
        let mut forecaster = forecaster();
        forecaster.estimate(&queue);
        let arrivals = forecaster.arrivals(&queue);
        let estimates = [5.0, 500.0]
            .map(|tokens| arrivals.estimate(10, 1000, Some(tokens), 0).expect("steps were timed"));
        assert_eq!(estimates.map(|of| of.place), places, "{policy}");
        assert!(estimates[0].last.median < estimates[1].last.median, "{estimates:?}");
        assert!((0.015..0.025).contains(&arrivals.next_end_s()) || policy == "fcfs");
    }
    let untimed = Queue { pace: StepPace::default(), ..queue("fcfs", 1, &[20.0]) };
    assert!(forecaster().arrivals(&untimed).estimate(10, 10, None, 0).is_none());
}

/// A new request takes the place of one that has much left, and one that is past its window stays.
#[test]
fn preemption_ends_with_the_window() {
    let policy = PolicyKind::Trail(Trail::paper(0.8));
    assert_eq!(QueueOrder::of(policy), QueueOrder::Length { preempts: true });
    let mut queue = Queue { ..queue("trail", 1, &[400.0]) };
    queue.ranking = trail_scheduler::policies::Ranking::PAPER;
    let median = |queue: &Queue| {
        let mut forecaster = forecaster();
        for at in 0..200 {
            forecaster.arrived(1000 + at, f64::from(at as i32 - 200) / 15.0, None);
        }
        forecaster.estimate(queue)[0].last.median
    };
    let preempted = median(&queue);
    queue.requests[0].generated = 390;
    queue.requests[0].computed = 399;
    let kept = median(&queue);
    assert!(preempted > 1.3 * kept && kept < 0.5, "{preempted} {kept}");
}

/// A queue may be older than the end of one of its requests, which is not to be waited for then.
#[test]
fn a_request_that_has_ended_is_not_watched() {
    let mut forecaster = forecaster();
    let mut queue = queue("fcfs", 4, &[50.0, 50.0]);
    forecaster.arrived(0, 0.0, None);
    forecaster.ended(0, 0.0, None);
    forecaster.arrived(1, 0.0, None);
    let median = |forecaster: &mut Forecaster, queue: &Queue| forecaster.estimate(queue)[0].last;
    let before = median(&mut forecaster, &queue);
    queue.requests.truncate(1);
    forecaster.ended(1, 0.05, None);
    queue.now_s = 1e4;
    let after = median(&mut forecaster, &queue);
    assert!(after.high < 3.0 * before.high, "{before:?} {after:?}");
}

/// A request of 100 tokens that arrived before five of 80, behind one that runs: 0.5 s of work. A
/// small share of it lets the long request go second, twice of it lets it wait to the end.
#[test]
fn a_request_is_overdue_after_the_share_of_the_wait() {
    let long_ends_s = |share: f32| {
        let mut queue = queue("sjf", 1, &[10.0, 100.0, 80.0, 80.0, 80.0, 80.0, 80.0]);
        queue.ranking = Ranking { tail_bound: share, express: 0.0, ..queue.ranking };
        queue.overdue_after_s = Some(f64::from(share) * 0.5);
        for request in &mut queue.requests {
            request.arrival_s = request.id.0 as f64 * 1e-6;
        }
        let mut forecaster = forecaster();
        let forecasts = forecaster.estimate(&queue);
        forecasts.iter().find(|of| of.id == 1).expect("the long one").last.median
    };
    let [early, late] = [0.1, 2.0].map(long_ends_s);
    assert!(early < 0.3 && late > 0.45, "{early} {late}");
}
