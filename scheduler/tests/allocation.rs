//! Nothing allocates after construction: the counting allocator checks 1,000 steps.

use trail_counting_allocator::of_thread;
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    BlockHash, NewRequest, Policy, Preemption, RequestId, RequestIdx, Scheduler, SchedulerConfig,
};

// Of this thread: the scheduler has no other, and the test harness allocates on its own.
#[test]
fn a_step_allocates_nothing() {
    // Bounds that 1,000 steps reach.
    let short = ["trail:1", "trail-bert:1", "ltr:9:3", "mlfq:0.5:2:5:4:0.1", "isrtf:4"];
    let names = PolicyKind::HELP.iter().map(|&(name, _)| name);
    for text in names.chain(short) {
        let kind: PolicyKind = text.parse().unwrap();
        let mut scheduler = crowded(kind.build());
        let before = of_thread();
        let swaps: u32 = (0..1000).map(|step| swapping_step(&mut scheduler, step)).sum();
        assert_eq!(of_thread(), before, "{text}");
        assert!(swaps > 50 || !short.contains(&text), "{text}: {swaps}");
    }
}

#[test]
fn nor_does_one_whose_block_changes_are_recorded() {
    let mut scheduler = crowded(PolicyKind::trail(1.0).build());
    scheduler.record_block_changes();
    let before = of_thread();
    let changes: usize = (0..1000)
        .map(|step| {
            swapping_step(&mut scheduler, step);
            scheduler.take_block_changes().count()
        })
        .sum();
    assert_eq!(of_thread(), before);
    assert!(changes > 100, "{changes}");
}

/// Twelve requests, whose KV together exceeds the cache several times.
fn crowded(policy: Box<dyn Policy>) -> Scheduler {
    let config = SchedulerConfig {
        max_running: 4,
        max_requests: 12,
        num_blocks: 12,
        preemption: Preemption::Swap,
        host_blocks: 40,
        cached_blocks: 12,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config, policy).unwrap();
    (0..12).for_each(|seq| submit(&mut scheduler, seq));
    scheduler
}

fn submit(scheduler: &mut Scheduler, seq: u64) {
    let length = 4 + (seq * 37 % 100) as u32;
    let request = NewRequest {
        id: RequestId(seq),
        prompt_tokens: 30,
        max_tokens: length,
        arrival_s: 0.0,
        initial_prediction: Some(length as f32),
        true_length: Some(length),
        ..NewRequest::default()
    };
    let idx = scheduler.submit(request).unwrap();
    scheduler.push_block_hash(idx, BlockHash(seq.into()));
}

/// A step with swaps, whose transfers end just before the next; finished requests are replaced.
fn swapping_step(scheduler: &mut Scheduler, step: u64) -> u32 {
    for idx in (0..12).map(RequestIdx) {
        if scheduler.state(idx).moving() {
            scheduler.transferred(idx);
        }
    }
    let swaps = scheduler.plan(step, 0.25 * step as f64).swap_out.len() as u32;
    scheduler.advance();
    for idx in (0..12).map(RequestIdx) {
        let request = scheduler.state(idx);
        if request.generated == request.max_tokens {
            scheduler.finish(idx);
            // Shorter than most running requests, so that it preempts one.
            submit(scheduler, step);
        }
    }
    swaps
}
