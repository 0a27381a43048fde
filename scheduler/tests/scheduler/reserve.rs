//! The options of prediction: blocks reserved for predicted growth, and refreshed estimates.

use trail_scheduler::policies::{Fcfs, Trail};
use trail_scheduler::{
    ConfigError, NewRequest, Phase, Policy, Prediction, RequestId, RequestIdx, Reserve, Scheduler,
    SchedulerConfig,
};

const TWO: [RequestIdx; 2] = [RequestIdx(0), RequestIdx(1)];

fn config(reserve: Reserve) -> SchedulerConfig {
    SchedulerConfig {
        max_running: 4,
        max_requests: 8,
        token_budget: 64,
        num_blocks: 10,
        max_context: 160,
        watermark: 0.0,
        reserve,
        ..SchedulerConfig::default()
    }
}

fn scheduler(config: SchedulerConfig, policy: impl Policy + 'static) -> Scheduler {
    Scheduler::new(config, Box::new(policy)).unwrap()
}

/// A request of one block of prompt, with `predicted` of at most 144 output tokens.
fn request(id: u64, predicted: Option<f32>) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        prompt_tokens: 16,
        max_tokens: 144,
        initial_prediction: predicted,
        ..NewRequest::default()
    }
}

/// Runs `steps`, from step `from` on. Returns the indices in each batch.
fn run(scheduler: &mut Scheduler, from: u64, steps: u64) -> Vec<Vec<u32>> {
    let mut ran = Vec::new();
    for step in from..from + steps {
        let plan = scheduler.plan(step, step as f64);
        ran.push(plan.rows.iter().map(|row| row.idx.0).collect());
        scheduler.advance();
    }
    ran
}

/// Indices in the first batch of requests with these predictions, first come, first served.
fn admitted(reserve: Reserve, predicted: &[Option<f32>]) -> Vec<u32> {
    let mut scheduler = scheduler(config(reserve), Fcfs);
    for (id, &tokens) in predicted.iter().enumerate() {
        scheduler.submit(request(id as u64, tokens)).unwrap();
    }
    run(&mut scheduler, 0, 1).remove(0)
}

#[test]
fn a_reserve_admits_what_fits_at_its_predicted_end() {
    // Of 10 blocks: 1 + 3 each, 4 at the end.
    let of_64 = [Some(48.0); 4];
    assert_eq!(admitted(Reserve::None, &of_64), [0, 1, 2, 3]);
    assert_eq!(admitted(Reserve::Mean, &of_64), [0, 1]);
    assert_eq!(admitted(Reserve::P90, &of_64), [0, 1], "the expectation before the first probe");
    // A token more is a block more: 5 + 5, then 5 + 6.
    assert_eq!(admitted(Reserve::Mean, &[Some(64.0); 3]), [0, 1]);
    assert_eq!(admitted(Reserve::Mean, &[Some(64.0), Some(65.0)]), [0]);
    // Nothing is known but max_tokens, 9 blocks; alone it fits.
    assert_eq!(admitted(Reserve::Mean, &[None, None]), [0]);
    assert_eq!(admitted(Reserve::Mean, &[Some(1e9), Some(1.0)]), [0]);
}

#[test]
fn the_default_reserves_nothing_and_takes_every_prediction() {
    let default = SchedulerConfig::default();
    assert_eq!((default.reserve, default.refresh_tokens), (Reserve::None, 1));
    let error = SchedulerConfig { refresh_tokens: 0, ..default }.validate().unwrap_err();
    assert!(matches!(error, ConfigError::OutOfRange { name: "refresh_tokens", .. }), "{error}");
}

/// Steps `scheduler` until both of two requests have all their tokens. Returns the evictions.
fn evictions(reserve: Reserve) -> u32 {
    let mut scheduler = scheduler(config(reserve), Fcfs);
    TWO.iter().for_each(|idx| {
        scheduler.submit(request(idx.0.into(), Some(140.0))).unwrap();
    });
    let (mut step, mut evicted) = (0, 0);
    while scheduler.live() > 0 {
        assert!(step < 1000, "livelock");
        evicted += scheduler.plan(step, step as f64).evicted.len() as u32;
        scheduler.advance();
        for idx in TWO {
            if scheduler.state(idx).generated == 144 {
                scheduler.finish(idx);
            }
        }
        step += 1;
    }
    evicted
}

#[test]
fn a_reserve_avoids_the_eviction() {
    assert!(evictions(Reserve::None) > 0);
    assert_eq!(evictions(Reserve::Mean), 0);
}

/// Two running requests of 20 expected tokens, up to 144 with a chance of 10 %; then a third.
fn third_enters(reserve: Reserve) -> bool {
    let mut scheduler = scheduler(config(reserve), Fcfs);
    for id in 0..2 {
        scheduler.submit(request(id, Some(20.0))).unwrap();
    }
    run(&mut scheduler, 0, 1);
    for idx in TWO {
        let probed = Prediction { remaining: 20.0, p90: 70.0, step: 1, ..Prediction::default() };
        scheduler.predict(idx, probed);
    }
    scheduler.submit(request(2, Some(20.0))).unwrap();
    run(&mut scheduler, 1, 1);
    scheduler.state(RequestIdx(2)).phase == Phase::Running
}

#[test]
fn the_p90_holds_back_what_the_mean_admits() {
    // Ends of 3 blocks each; with the quantile 6 + 6 + 3.
    assert!(third_enters(Reserve::None) && third_enters(Reserve::Mean));
    assert!(!third_enters(Reserve::P90));
}

/// Evictions by a newcomer of `prompt_tokens` and 2 predicted tokens, with `residents`: prompts and
/// predictions.
fn evicted_for(prompt_tokens: u32, reserve: Reserve, residents: &[(u32, f32)]) -> usize {
    let wide = SchedulerConfig { token_budget: 160, ..config(reserve) };
    let mut scheduler = scheduler(wide, Trail::paper(1.0).policy());
    let submit = |scheduler: &mut Scheduler, prompt_tokens, tokens| {
        let request = request(0, Some(tokens));
        scheduler.submit(NewRequest { prompt_tokens, max_tokens: 16, ..request }).unwrap();
    };
    residents.iter().for_each(|&(prompt, tokens)| submit(&mut scheduler, prompt, tokens));
    assert_eq!(run(&mut scheduler, 0, 1)[0].len(), residents.len());
    submit(&mut scheduler, prompt_tokens, 2.0);
    scheduler.plan(1, 1.0).evicted.len()
}

#[test]
fn a_better_ranked_request_evicts_only_as_the_first_of_the_plan() {
    // 2 and 8 blocks at present and at the end; the newcomer ranks between the two.
    let full = [(20, 1.0), (120, 4.0)];
    assert_eq!(evicted_for(16, Reserve::None, &full), 1);
    assert_eq!(evicted_for(16, Reserve::Mean, &full), 0);
    // 9 blocks of 10; the newcomer ranks before them and needs 2.
    for reserve in [Reserve::None, Reserve::Mean, Reserve::P90] {
        assert_eq!(evicted_for(32, reserve, &[(140, 10.0)]), 1, "{reserve:?}");
    }
}

#[test]
fn a_rank_is_refreshed_every_n_tokens() {
    let ran = |refresh_tokens| {
        let one = SchedulerConfig { max_running: 1, refresh_tokens, ..config(Reserve::None) };
        let mut scheduler = scheduler(one, Trail::paper(1.0).policy());
        scheduler.submit(request(0, Some(40.0))).unwrap();
        scheduler.submit(request(1, Some(30.0))).unwrap();
        let mut ran = Vec::new();
        for step in 0..12 {
            ran.extend(run(&mut scheduler, step, 1).remove(0));
            // Shorter than the other at its first token, longer at the second and from then on.
            let state = scheduler.state(RequestIdx(1));
            let remaining = if state.generated > 1 { 60.0 } else { 29.0 };
            let prediction = Prediction { remaining, step: step + 1, ..Prediction::default() };
            scheduler.predict(RequestIdx(1), prediction);
        }
        ran.iter().position(|&idx| idx == 0)
    };
    // The second token, and a refresh of 4 tokens after the first.
    assert_eq!((ran(1), ran(4)), (Some(2), Some(5)));
}
