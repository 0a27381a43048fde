//! Conversations whose turns share blocks by their hashes.

use std::collections::VecDeque;

use trail_platform::Rng;
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    BLOCK_TOKENS, BlockHash, Finished, NewRequest, Phase, Preemption, RequestId, RequestIdx,
    Scheduler, SchedulerConfig,
};

/// A request as the caller of a scheduler knows it.
#[derive(Clone, Copy)]
struct Turn {
    conversation: u64,
    /// Turns before it.
    turn: u32,
    /// Hashes given so far.
    hashes: u32,
    cancelled_at: u32,
}

/// A caller that gives the hashes of blocks as their tokens become known.
struct Caller {
    scheduler: Scheduler,
    rng: Rng,
    live: Vec<Option<Turn>>,
    /// Conversations with a turn to come, and the tokens so far.
    next: VecDeque<(u64, u32, u32)>,
    begun: u64,
    step: u64,
    submitted: u64,
    hits: u64,
}

impl Caller {
    fn new(seed: u64) -> Caller {
        let mut rng = Rng::new(seed);
        let names = PolicyKind::HELP;
        let (name, _) = names[rng.below(names.len() as u64) as usize];
        let config = SchedulerConfig {
            max_running: 8,
            max_requests: 32,
            token_budget: 256,
            num_blocks: 160,
            max_context: 1024,
            cached_blocks: 120,
            preemption: [Preemption::Recompute, Preemption::Swap][rng.below(2) as usize],
            host_blocks: 100,
            ..SchedulerConfig::default()
        };
        let policy = name.parse::<PolicyKind>().unwrap().build();
        Caller {
            scheduler: Scheduler::new(config, policy).unwrap(),
            rng,
            live: vec![None; 32],
            next: VecDeque::new(),
            begun: 0,
            step: 0,
            submitted: 0,
            hits: 0,
        }
    }

    fn submit(&mut self) {
        let begun = &mut self.begun;
        let (conversation, turn, history) = self.next.pop_front().unwrap_or_else(|| {
            *begun += 1;
            (*begun, 0, 0)
        });
        let length = 1 + self.rng.below(40) as u32;
        let request = NewRequest {
            id: RequestId(self.submitted),
            prompt_tokens: history + 1 + self.rng.below(60) as u32,
            max_tokens: length,
            initial_prediction: Some(length as f32),
            true_length: Some(length),
            arrival_s: self.step as f64,
            ..NewRequest::default()
        };
        let idx = self.scheduler.submit(request).unwrap();
        self.submitted += 1;
        let cancels = self.rng.below(8) == 0;
        let cancelled_at = if cancels { self.rng.below(u64::from(length)) as u32 } else { length };
        self.live[idx.index()] = Some(Turn { conversation, turn, hashes: 0, cancelled_at });
        self.push_hashes(idx);
    }

    /// The prompt's first block is that of two conversations in three; the others are their own.
    fn push_hashes(&mut self, idx: RequestIdx) {
        let turn = self.live[idx.index()].as_mut().unwrap();
        while (turn.hashes + 1) * BLOCK_TOKENS <= self.scheduler.state(idx).tokens() {
            let common = turn.hashes == 0 && !turn.conversation.is_multiple_of(3);
            let of = if common { 0 } else { turn.conversation };
            let hash = (u128::from(of) << 64) | u128::from(turn.hashes);
            self.scheduler.push_block_hash(idx, BlockHash(hash));
            turn.hashes += 1;
        }
    }

    fn step(&mut self) {
        for idx in (0..32).map(RequestIdx) {
            if self.live[idx.index()].is_some() && self.scheduler.state(idx).moving() {
                self.scheduler.transferred(idx);
            }
        }
        let rows = self.scheduler.plan(self.step, self.step as f64).rows.clone();
        self.scheduler.advance();
        self.step += 1;
        for row in rows {
            let state = self.scheduler.state(row.idx);
            let first = state.generated <= 1 && row.sample && state.evictions == 0;
            if first && row.start > 0 {
                self.hits += u64::from(row.start / BLOCK_TOKENS);
            }
            self.push_hashes(row.idx);
        }
        for idx in (0..32).map(RequestIdx) {
            self.end(idx);
        }
    }

    /// Ends a request that has all its tokens, or is cancelled, and queues the turn after it.
    fn end(&mut self, idx: RequestIdx) {
        let Some(turn) = self.live[idx.index()] else { return };
        let state = self.scheduler.state(idx);
        let whole = state.generated == state.max_tokens;
        if !whole && state.generated < turn.cancelled_at || state.phase == Phase::SwappingIn {
            return;
        }
        let tokens = state.tokens();
        if let Finished::AfterTransfer = self.scheduler.finish(idx) {
            self.scheduler.transferred(idx);
        }
        self.live[idx.index()] = None;
        if whole && turn.turn < 5 {
            self.next.push_back((turn.conversation, turn.turn + 1, tokens));
        }
    }
}

#[test]
fn a_hundred_thousand_turns_leave_no_block_in_use() {
    for seed in 0..20 {
        let mut caller = Caller::new(seed);
        while caller.submitted < 5_000 || caller.scheduler.live() > 0 {
            assert!(caller.step < 1_000_000, "livelock");
            while caller.submitted < 5_000 && caller.scheduler.live() < 32 {
                caller.submit();
            }
            caller.step();
        }
        let scheduler = &caller.scheduler;
        assert!(caller.hits > 1_000, "{}: {} hits", scheduler.policy().name(), caller.hits);
        assert_eq!((scheduler.blocks_used(), scheduler.host_blocks_used()), (0, 0));
        assert_eq!((scheduler.swapped(), scheduler.moving()), (0, 0));
    }
}
