//! The scheduler's behaviour in small examples, through the public interface.

use trail_scheduler::policies::{Fcfs, Oracle, Sjf, Trail};
use trail_scheduler::{
    MIN_CHUNK_TOKENS, NewRequest, Phase, Policy, Prediction, PrefillLimit, Refusal, RequestId,
    RequestIdx, Scheduler, SchedulerConfig,
};

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_running: 2,
        max_requests: 8,
        token_budget: 32,
        num_blocks: 64,
        max_context: 512,
        watermark: 0.0,
        ..SchedulerConfig::default()
    }
}

fn scheduler(config: SchedulerConfig, policy: Box<dyn Policy>) -> Scheduler {
    Scheduler::new(config, policy).unwrap()
}

/// A request of `prompt_tokens` with `length` output tokens, predicted correctly.
fn request(prompt_tokens: u32, length: u32) -> NewRequest {
    NewRequest {
        id: RequestId(0),
        prompt_tokens,
        max_tokens: length.max(1),
        arrival_s: 0.0,
        initial_prediction: Some(length as f32),
        true_length: Some(length),
        ..NewRequest::default()
    }
}

/// Plans and executes `step`. Returns the rows as (index, start, len, sampled).
fn run(scheduler: &mut Scheduler, step: u64) -> Vec<(u32, u32, u32, bool)> {
    let plan = scheduler.plan(step, step as f64);
    let rows = plan.rows.iter().map(|row| (row.idx.0, row.start, row.len, row.sample)).collect();
    scheduler.advance();
    rows
}

/// Runs until all requests have finished. Returns, for each index, the step after its last token.
fn finish_steps(scheduler: &mut Scheduler) -> Vec<u64> {
    let mut finished = vec![0; scheduler.live()];
    let mut step = 0;
    while scheduler.live() > 0 {
        assert!(step < 10_000, "livelock");
        for (idx, ..) in run(scheduler, step) {
            let request = scheduler.state(RequestIdx(idx));
            if request.generated == request.max_tokens {
                finished[idx as usize] = step + 1;
                scheduler.finish(RequestIdx(idx));
            }
        }
        step += 1;
    }
    finished
}

#[test]
fn fcfs_and_srpt_on_three_requests_of_one_server() {
    // Lengths 10, 2, 1 at once, one token a step (LTR, figure 1): in order of arrival they wait
    // 10, 12, 13 steps; shortest first 13, 3, 1.
    for (policy, want) in [
        (Box::new(Fcfs) as Box<dyn Policy>, [10, 12, 13]),
        (Box::new(Sjf::PAPER.policy()), [13, 3, 1]),
        (Box::new(Trail::paper(0.8).policy()), [13, 3, 1]),
        (Box::new(Oracle::default()), [13, 3, 1]),
    ] {
        let one = SchedulerConfig { max_running: 1, ..config() };
        let mut scheduler = Scheduler::new(one, policy).unwrap();
        for length in [10, 2, 1] {
            scheduler.submit(request(1, length)).unwrap();
        }
        assert_eq!(finish_steps(&mut scheduler), want, "{}", scheduler.policy().name());
    }
}

#[test]
fn a_long_prompt_is_split_and_leaves_a_row_for_each_decode() {
    let mut scheduler = scheduler(config(), Box::new(Trail::paper(0.8).policy()));
    scheduler.submit(request(4, 50)).unwrap();
    assert_eq!(run(&mut scheduler, 0), [(0, 0, 4, true)]);
    // Ranked first; it leaves one of the 32 rows for the decode behind it.
    scheduler.submit(request(70, 2)).unwrap();
    assert_eq!(run(&mut scheduler, 1), [(1, 0, 31, false), (0, 4, 1, true)]);
    assert_eq!(
        scheduler.blocks(RequestIdx(1)).len(),
        5,
        "the whole prompt's blocks from the start"
    );
    assert_eq!(run(&mut scheduler, 2), [(1, 31, 31, false), (0, 5, 1, true)]);
    assert_eq!(run(&mut scheduler, 3), [(1, 62, 8, true), (0, 6, 1, true)]);
    assert_eq!(run(&mut scheduler, 4), [(1, 70, 1, true), (0, 7, 1, true)]);
}

#[test]
fn a_limit_cuts_prefill_beside_a_decode_more_the_later_in_the_prompt() {
    let mut scheduler =
        scheduler(SchedulerConfig { token_budget: 400, ..config() }, Box::new(Fcfs));
    // 60 tokens from the start of a prompt, fewer behind a longer context.
    let limit = PrefillLimit { ns: 90.0, token_ns: 1.0, context_token_ns: 0.016 };
    scheduler.limit_prefill(Some(limit));
    scheduler.submit(request(400, 60)).unwrap();
    assert_eq!(run(&mut scheduler, 0), [(0, 0, 400, true)], "no request decodes: no bound");
    scheduler.submit(request(300, 2)).unwrap();
    let mut chunks = Vec::new();
    for step in 1..=13 {
        let rows = run(&mut scheduler, step);
        assert_eq!(rows[0].2, 1, "the decode runs in every step");
        chunks.extend(rows.get(1).map(|row| row.2));
    }
    assert_eq!(chunks.iter().sum::<u32>(), 301, "the prompt, then its first decode: {chunks:?}");
    assert!(chunks[0] >= 50 && chunks[..5].is_sorted_by(|a, b| a >= b), "{chunks:?}");
    assert!(chunks[..chunks.len() - 2].iter().all(|&len| len >= MIN_CHUNK_TOKENS), "{chunks:?}");
}

#[test]
fn a_limit_of_no_time_leaves_the_first_prefill_its_least_chunk() {
    let config = SchedulerConfig { max_running: 4, token_budget: 400, ..config() };
    let mut scheduler = scheduler(config, Box::new(Fcfs));
    scheduler.submit(request(4, 60)).unwrap();
    run(&mut scheduler, 0);
    scheduler.limit_prefill(Some(PrefillLimit { ns: 0.0, token_ns: 1.0, context_token_ns: 0.0 }));
    for prompt in [40, 30] {
        scheduler.submit(request(prompt, 60)).unwrap();
    }
    let chunks: Vec<_> = (1..6).map(|step| run(&mut scheduler, step)[1..].to_vec()).collect();
    assert_eq!(chunks[0], [(1, 0, 16, false)], "the second prompt waits for the first");
    assert_eq!(chunks[1], [(1, 16, 16, false)]);
    assert_eq!(chunks[2], [(1, 32, 8, true)]);
    assert_eq!(chunks[3], [(1, 40, 1, true), (2, 0, 16, false)]);
    assert_eq!(chunks[4], [(1, 41, 1, true), (2, 16, 14, true)]);
}

#[test]
fn fcfs_stops_at_the_first_that_does_not_fit_and_sjf_goes_on() {
    // 4 blocks: the first takes 2, the second wants 3, the third 1.
    let small = SchedulerConfig { max_running: 3, token_budget: 200, num_blocks: 4, ..config() };
    let submit = |mut scheduler: Scheduler| {
        for (prompt, length) in [(20, 5), (40, 6), (4, 7)] {
            scheduler.submit(request(prompt, length)).unwrap();
        }
        run(&mut scheduler, 0).iter().map(|row| row.0).collect::<Vec<_>>()
    };
    assert_eq!(submit(scheduler(small, Box::new(Fcfs))), [0]);
    assert_eq!(submit(scheduler(small, Box::new(Sjf::PAPER.policy()))), [0, 2]);
}

#[test]
fn a_request_skipped_too_often_becomes_a_barrier_for_bounded_steps() {
    let bounds = SchedulerConfig {
        max_running: 8,
        num_blocks: 4,
        token_budget: 200,
        max_skipped_steps: 2,
        max_barrier_steps: 3,
        ..config()
    };
    let mut scheduler = scheduler(bounds, Box::new(Sjf::PAPER.policy()));
    let holder = scheduler.submit(request(33, 10)).unwrap(); // 3 blocks
    run(&mut scheduler, 0);
    scheduler.submit(request(40, 11)).unwrap(); // 3 more: skipped
    let entered: Vec<bool> = (1..=8)
        .map(|step| {
            let small = scheduler.submit(request(1, 12)).unwrap();
            let entered = run(&mut scheduler, step).iter().any(|row| row.0 == small.0);
            scheduler.finish(small);
            entered
        })
        .collect();
    assert_eq!(entered, [true, true, false, false, false, true, true, false]);
    scheduler.finish(holder);
    assert_eq!(run(&mut scheduler, 9)[0].0, 1);
}

#[test]
fn fcfs_evicts_the_latest_arrival_and_recomputes_it_first() {
    // 4 blocks; two requests of 2 blocks each grow until the first needs a third.
    let small = SchedulerConfig { num_blocks: 4, token_budget: 64, ..config() };
    let mut scheduler = scheduler(small, Box::new(Fcfs));
    for _ in 0..3 {
        scheduler.submit(request(31, 30)).unwrap();
    }
    assert_eq!(run(&mut scheduler, 0), [(0, 0, 31, true), (1, 0, 31, true)]);
    assert_eq!(run(&mut scheduler, 1), [(0, 31, 1, true), (1, 31, 1, true)]);
    let plan = scheduler.plan(2, 2.0);
    assert_eq!((&plan.preempted, &plan.evicted), (&vec![RequestIdx(1)], &vec![RequestIdx(1)]));
    assert_eq!(plan.rows.len(), 1);
    scheduler.advance();
    scheduler.finish(RequestIdx(0));
    // Its 33 tokens are recomputed before the third request enters.
    let plan = scheduler.plan(3, 3.0);
    assert_eq!((plan.rows[0].idx, plan.rows[0].start, plan.rows[0].len), (RequestIdx(1), 0, 33));
    assert!(plan.rows[0].sample);
    assert_eq!(plan.recomputed_tokens, 32);
    assert_eq!(scheduler.state(RequestIdx(1)).generated, 2, "age survives eviction");
}

#[test]
fn trail_preempts_inside_the_window_only_and_keeps_the_kv() {
    let one = SchedulerConfig { max_running: 1, ..config() };
    for (c, preempts) in [(0.0, false), (0.1, false), (0.2, true), (1.0, true)] {
        let mut scheduler = scheduler(one, Box::new(Trail::paper(c).policy()));
        scheduler.submit(request(4, 20)).unwrap();
        (0..3).for_each(|step| drop(run(&mut scheduler, step)));
        scheduler.submit(request(4, 2)).unwrap();
        let plan = scheduler.plan(3, 3.0);
        assert_eq!(plan.rows[0].idx == RequestIdx(1), preempts, "c {c}");
        assert_eq!(plan.preempted.len(), preempts as usize);
        assert!(plan.evicted.is_empty());
        let phase = if preempts { Phase::Paused } else { Phase::Running };
        assert_eq!(scheduler.state(RequestIdx(0)).phase, phase);
        assert_eq!(scheduler.state(RequestIdx(0)).computed, 6, "the KV stays");
    }
}

#[test]
fn a_prediction_moves_its_request_and_a_stale_one_does_not() {
    let one = SchedulerConfig { max_running: 1, ..config() };
    let mut scheduler = scheduler(one, Box::new(Trail::paper(1.0).policy()));
    scheduler.submit(request(4, 100)).unwrap();
    scheduler.submit(request(4, 150)).unwrap();
    run(&mut scheduler, 0);
    let long = Prediction { remaining: 99.9, step: 0, generation: 0, ..Default::default() };
    scheduler.predict(RequestIdx(0), Prediction { generation: 7, remaining: 400.0, ..long });
    assert_eq!(scheduler.state(RequestIdx(0)).remaining(), Some(99.0));
    scheduler.predict(RequestIdx(0), Prediction { remaining: 95.0, ..long });
    assert_eq!(scheduler.state(RequestIdx(0)).remaining(), Some(94.0));
    // The waiting one is predicted shorter than what remains of the running one.
    scheduler.predict(RequestIdx(1), Prediction { remaining: 50.0, ..long });
    assert_eq!(run(&mut scheduler, 1)[0].0, 1);
    assert_eq!(scheduler.state(RequestIdx(0)).phase, Phase::Paused);
}

#[test]
fn finish_works_in_every_phase_and_twice() {
    let one = SchedulerConfig { max_running: 1, ..config() };
    let mut scheduler = scheduler(one, Box::new(Trail::paper(1.0).policy()));
    let paused = scheduler.submit(request(4, 50)).unwrap();
    run(&mut scheduler, 0);
    let running = scheduler.submit(request(4, 5)).unwrap();
    run(&mut scheduler, 1);
    let waiting = scheduler.submit(request(4, 60)).unwrap();
    assert_eq!((scheduler.running(), scheduler.paused(), scheduler.waiting()), (1, 1, 1));
    for idx in [paused, running, waiting, running] {
        scheduler.finish(idx);
    }
    assert_eq!((scheduler.live(), scheduler.blocks_used()), (0, 0));
    assert_eq!(scheduler.generation(running), 1);
}

#[test]
fn what_can_never_run_is_refused_with_a_reason() {
    let small = SchedulerConfig { num_blocks: 4, max_requests: 2, max_context: 100, ..config() };
    let mut scheduler = scheduler(small, Box::new(Fcfs));
    let mut refusal = |request: NewRequest| scheduler.submit(request).unwrap_err();
    assert_eq!(refusal(request(0, 1)), Refusal::EmptyPrompt);
    assert_eq!(refusal(NewRequest { max_tokens: 0, ..request(1, 1) }), Refusal::ZeroMaxTokens);
    assert_eq!(refusal(request(40, 25)), Refusal::NeverFits { needed_blocks: 5, num_blocks: 4 });
    assert_eq!(
        refusal(request(u32::MAX, u32::MAX)),
        Refusal::ContextTooLong { needed_tokens: 2 * u32::MAX as u64, max_context: 100 }
    );
    assert!(refusal(request(40, 25)).to_string().contains("lower max_tokens"));
    scheduler.submit(request(40, 24)).unwrap();
    scheduler.submit(request(1, 1)).unwrap();
    assert_eq!(scheduler.submit(request(1, 1)), Err(Refusal::Full { max_requests: 2 }));
}

#[test]
fn impossible_sizes_are_refused_by_name() {
    let wrong = SchedulerConfig { token_budget: 1, ..config() };
    let message = Scheduler::new(wrong, Box::new(Fcfs)).err().unwrap().to_string();
    assert!(message.contains("token_budget is 1"), "{message}");
    let wrong = SchedulerConfig { watermark: f32::NAN, ..config() };
    assert!(wrong.validate().is_err());
}

#[test]
fn the_worst_request_that_never_ran_is_the_one_to_give_up() {
    let five = SchedulerConfig { num_blocks: 5, max_context: 80, ..config() };
    let mut scheduler = scheduler(five, Box::new(Trail::paper(1.0).policy()));
    scheduler.submit(request(17, 40)).unwrap();
    assert_eq!(scheduler.worst_unstarted(), Some(RequestIdx(0)));
    run(&mut scheduler, 0);
    assert_eq!(scheduler.worst_unstarted(), None);
    // Shorter ones evict it: it waits again, the worst ranked of all, but it has run.
    for length in [3, 8, 5] {
        scheduler.submit(request(60, length)).unwrap();
    }
    run(&mut scheduler, 1);
    assert_eq!(scheduler.state(RequestIdx(0)).phase, Phase::Waiting);
    assert_eq!(scheduler.worst_unstarted(), Some(RequestIdx(2)), "8 tokens; 3 run");
}
