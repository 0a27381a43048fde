//! Swapping in small examples, through the public interface.

use trail_scheduler::policies::{Fcfs, Trail};
use trail_scheduler::{
    Finished, NewRequest, Phase, Policy, Preemption, Refusal, RequestId, RequestIdx, Scheduler,
    SchedulerConfig, Transferred,
};

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_running: 2,
        max_requests: 8,
        token_budget: 64,
        num_blocks: 4,
        max_context: 512,
        watermark: 0.0,
        preemption: Preemption::Swap,
        host_blocks: 64,
        reclaim_steps: 0,
        ..SchedulerConfig::default()
    }
}

fn scheduler(config: SchedulerConfig, policy: Box<dyn Policy>) -> Scheduler {
    Scheduler::new(config, policy).unwrap()
}

fn request(prompt_tokens: u32, length: u32) -> NewRequest {
    NewRequest {
        id: RequestId(0),
        prompt_tokens,
        max_tokens: length,
        arrival_s: 0.0,
        initial_prediction: Some(length as f32),
        true_length: Some(length),
        ..NewRequest::default()
    }
}

/// Rows as (index, start, len), then the requests whose swap-out and whose swap-in begins.
type Ran = (Vec<(u32, u32, u32)>, Vec<u32>, Vec<u32>);

/// Plans and executes `step`.
fn run(scheduler: &mut Scheduler, step: u64) -> Ran {
    let plan = scheduler.plan(step, 0.0);
    let rows = plan.rows.iter().map(|row| (row.idx.0, row.start, row.len)).collect();
    let indices = |indices: &[RequestIdx]| indices.iter().map(|idx| idx.0).collect();
    let ways = (indices(&plan.swap_out), indices(&plan.swap_in));
    scheduler.advance();
    (rows, ways.0, ways.1)
}

/// Two requests of two blocks each fill the cache; in step 2 the first needs a third.
fn short_of_a_block(config: SchedulerConfig) -> Scheduler {
    let mut scheduler = scheduler(config, Box::new(Fcfs));
    for _ in 0..2 {
        scheduler.submit(request(31, 30)).unwrap();
    }
    assert_eq!(run(&mut scheduler, 0).0, [(0, 0, 31), (1, 0, 31)]);
    assert_eq!(run(&mut scheduler, 1).0, [(0, 31, 1), (1, 31, 1)]);
    scheduler
}

#[test]
fn a_victims_blocks_come_free_after_the_transfer_and_its_kv_returns() {
    let mut scheduler = short_of_a_block(config());
    // The first waits for the second's transfer; no step can use the blocks of either until then.
    assert_eq!(run(&mut scheduler, 2), (vec![], vec![1], vec![]));
    assert_eq!(scheduler.state(RequestIdx(1)).phase, Phase::SwappingOut);
    assert_eq!((scheduler.blocks(RequestIdx(1)).len(), scheduler.blocks_used()), (2, 4));
    assert_eq!(run(&mut scheduler, 3), (vec![], vec![], vec![]), "no other victim is chosen");
    assert_eq!(scheduler.moving(), 1);
    assert_eq!(scheduler.transferred(RequestIdx(1)), Transferred::Swapped);
    assert_eq!((scheduler.blocks_used(), scheduler.host_blocks_used()), (2, 2));
    assert_eq!(run(&mut scheduler, 4).0, [(0, 32, 1)]);
    assert_eq!((scheduler.swapped(), scheduler.waiting()), (1, 0));
    // The swapped one needs three blocks: both do not fit until the first has finished.
    assert_eq!(run(&mut scheduler, 5), (vec![(0, 33, 1)], vec![], vec![]));
    assert_eq!(scheduler.finish(RequestIdx(0)), Finished::Now);
    assert_eq!(run(&mut scheduler, 6), (vec![], vec![], vec![1]));
    assert_eq!(scheduler.copies(RequestIdx(1)).device, &scheduler.blocks(RequestIdx(1))[..2]);
    assert_eq!(scheduler.blocks_used(), 3, "and one for the token that is not computed");
    assert_eq!(scheduler.transferred(RequestIdx(1)), Transferred::Returned);
    assert_eq!(scheduler.host_blocks_used(), 0);
    assert_eq!(run(&mut scheduler, 7).0, [(1, 32, 1)], "nothing is computed twice");
    assert_eq!(
        (scheduler.state(RequestIdx(1)).swaps, scheduler.state(RequestIdx(1)).evictions),
        (1, 0)
    );
}

#[test]
fn the_cheaper_way_is_taken_and_the_host_must_have_room() {
    // The victim has 32 tokens in 2 blocks: out and in are 4 copies, against 32 tokens.
    let auto = SchedulerConfig { preemption: Preemption::Auto, token_s: 1.0, ..config() };
    for (config, swaps) in [
        (config(), true),
        (SchedulerConfig { host_blocks: 2, ..config() }, true),
        (SchedulerConfig { host_blocks: 1, ..config() }, false),
        (SchedulerConfig { host_blocks: 0, ..config() }, false),
        (SchedulerConfig { preemption: Preemption::Recompute, ..config() }, false),
        (SchedulerConfig { block_s: 7.9, ..auto }, true),
        (SchedulerConfig { block_s: 8.0, ..auto }, false),
    ] {
        let mut scheduler = short_of_a_block(config);
        let plan = scheduler.plan(2, 0.0);
        let (out, evicted) = (plan.swap_out.len(), plan.evicted.len());
        assert_eq!((out, evicted), (swaps as usize, !swaps as usize), "{config:?}");
        assert!(plan.preempted.contains(&RequestIdx(1)));
    }
}

#[test]
fn the_worst_paused_leave_ahead_of_need() {
    let roomy = SchedulerConfig { max_running: 1, num_blocks: 12, watermark: 0.5, ..config() };
    let mut scheduler = scheduler(roomy, Box::new(Trail::paper(1.0).policy()));
    // Each arrival is shorter than those before and takes the one place: they pause, with 2 blocks.
    for (step, length) in [(0, 40), (1, 30), (2, 20)] {
        scheduler.submit(request(20, length)).unwrap();
        assert!(run(&mut scheduler, step).1.is_empty(), "six blocks are free");
    }
    // The fourth leaves 4 free, two below the mark: swapping the longest out is enough.
    scheduler.submit(request(20, 10)).unwrap();
    let (rows, out, _) = run(&mut scheduler, 3);
    assert_eq!((rows.len(), out), (1, vec![0]));
    assert!(run(&mut scheduler, 4).1.is_empty(), "what is on its way counts");
    scheduler.transferred(RequestIdx(0));
    assert_eq!((scheduler.paused(), scheduler.swapped()), (2, 1));
}

#[test]
fn what_comes_free_reaches_whom_it_was_taken_for() {
    let five = SchedulerConfig { max_running: 3, num_blocks: 5, ..config() };
    let mut scheduler = scheduler(five, Box::new(Trail::paper(1.0).policy()));
    for (prompt, length) in [(20, 55), (31, 30)] {
        scheduler.submit(request(prompt, length)).unwrap();
    }
    run(&mut scheduler, 0);
    run(&mut scheduler, 1);
    // The shortest needs 3 blocks: 1 is free, 2 come from the longest. The second needs one as
    // well, and must not get the free one.
    scheduler.submit(request(40, 5)).unwrap();
    assert_eq!(run(&mut scheduler, 2), (vec![], vec![0], vec![]));
    assert_eq!(run(&mut scheduler, 3), (vec![], vec![], vec![]));
    scheduler.transferred(RequestIdx(0));
    assert_eq!(run(&mut scheduler, 4), (vec![(2, 0, 40)], vec![], vec![]));
    assert_eq!(scheduler.state(RequestIdx(1)).phase, Phase::Paused);
}

#[test]
fn blocks_that_wait_for_a_swap_in_are_reserved_with_the_watermark() {
    // The watermark is 3 of 12 blocks.
    let roomy = SchedulerConfig { max_running: 3, token_budget: 256, num_blocks: 12, ..config() };
    let roomy = SchedulerConfig { watermark: 0.25, ..roomy };
    let mut scheduler = scheduler(roomy, Box::new(Trail::paper(1.0).policy()));
    let long = scheduler.submit(request(60, 100)).unwrap();
    run(&mut scheduler, 0);
    let large = scheduler.submit(request(130, 5)).unwrap();
    assert_eq!(run(&mut scheduler, 1).1, [long.0]);
    scheduler.transferred(long);
    scheduler.finish(large);
    let first = scheduler.submit(request(10, 10)).unwrap();
    let last = scheduler.submit(request(16, 30)).unwrap();
    let rows = vec![(first.0, 0, 10), (last.0, 0, 16)];
    assert_eq!(run(&mut scheduler, 2), (rows, vec![], vec![long.0]));
    // 6 blocks are free. This one needs 5 and the watermark, 8: one more than are free or held by
    // the last, which ranks behind it, so it waits for those of the long one. The last needs a
    // block in this step, and gets none of the 6.
    let between = scheduler.submit(request(80, 20)).unwrap();
    assert_eq!(run(&mut scheduler, 3), (vec![(first.0, 10, 1)], vec![last.0], vec![]));
    scheduler.transferred(last);
    scheduler.transferred(long);
    // One block short, it takes the long one's.
    assert_eq!(run(&mut scheduler, 4).1, [long.0]);
    scheduler.transferred(long);
    assert_eq!(run(&mut scheduler, 5).0, [(first.0, 12, 1), (between.0, 0, 80)]);
}

#[test]
fn a_request_finished_in_transfer_keeps_its_blocks_until_the_end() {
    let mut scheduler = short_of_a_block(SchedulerConfig { max_requests: 2, ..config() });
    run(&mut scheduler, 2);
    let generation = scheduler.generation(RequestIdx(1));
    assert_eq!(scheduler.finish(RequestIdx(1)), Finished::AfterTransfer);
    assert_eq!(scheduler.finish(RequestIdx(1)), Finished::AfterTransfer, "twice is once");
    assert_eq!((scheduler.live(), scheduler.blocks_used()), (1, 4));
    assert_eq!(scheduler.generation(RequestIdx(1)), generation + 1);
    assert_eq!(scheduler.submit(request(1, 1)), Err(Refusal::Full { max_requests: 2 }));
    assert_eq!(scheduler.transferred(RequestIdx(1)), Transferred::Finished);
    assert_eq!((scheduler.blocks_used(), scheduler.host_blocks_used()), (2, 0));
    assert_eq!(scheduler.submit(request(1, 1)), Ok(RequestIdx(1)));
    assert_eq!(scheduler.generation(RequestIdx(1)), generation + 1);
}

#[test]
fn finish_with_the_kv_at_the_host_or_coming_back() {
    for coming_back in [false, true] {
        let mut scheduler = short_of_a_block(config());
        run(&mut scheduler, 2);
        scheduler.transferred(RequestIdx(1));
        if coming_back {
            scheduler.finish(RequestIdx(0));
            run(&mut scheduler, 3);
            assert_eq!(scheduler.finish(RequestIdx(1)), Finished::AfterTransfer);
            assert_eq!(scheduler.blocks_used(), 3);
            assert_eq!(scheduler.transferred(RequestIdx(1)), Transferred::Finished);
        } else {
            assert_eq!(scheduler.finish(RequestIdx(1)), Finished::Now);
            scheduler.finish(RequestIdx(0));
        }
        assert_eq!((scheduler.blocks_used(), scheduler.host_blocks_used()), (0, 0));
        assert_eq!((scheduler.live(), scheduler.moving(), scheduler.swapped()), (0, 0, 0));
    }
}

#[test]
fn a_half_done_prompt_leaves_what_is_computed_of_it() {
    let chunked = SchedulerConfig { token_budget: 20, num_blocks: 6, ..config() };
    let mut scheduler = scheduler(chunked, Box::new(Trail::paper(1.0).policy()));
    scheduler.submit(request(90, 6)).unwrap();
    run(&mut scheduler, 0);
    assert_eq!(scheduler.blocks(RequestIdx(0)).len(), 6);
    // A shorter one needs a block: 4 of the 6 hold no computed tokens and are free at once.
    scheduler.submit(request(16, 1)).unwrap();
    let (rows, out, _) = run(&mut scheduler, 1);
    assert_eq!((rows, out), (vec![(1, 0, 16)], vec![0]));
    assert_eq!(scheduler.blocks(RequestIdx(0)).len(), 2);
    assert_eq!(scheduler.host_blocks_used(), 2);
}

#[test]
#[should_panic(expected = "request 0 has no transfer in flight")]
fn a_transfer_that_did_not_begin_cannot_end() {
    scheduler(config(), Box::new(Fcfs)).transferred(RequestIdx(0));
}

#[test]
fn costs_that_are_no_times_are_refused_by_name() {
    let wrong = SchedulerConfig { token_s: f64::NAN, ..config() };
    let message = wrong.validate().unwrap_err().to_string();
    assert!(message.contains("token_s is NaN"), "{message}");
}
