//! The content of KV blocks in the step loop: recorded when a block fills, compared when a request
//! begins with blocks that it found by hash.

use trail_scheduler::{PlanRow, RequestIdx};

use super::stats::add;
use super::step_loop::StepLoop;
use crate::backend::{BLOCK_TOKENS, PENDING, Segment};

impl StepLoop {
    /// Compares the blocks that requests of the plan found by hash with their tokens. One that
    /// found those of another sequence, as hashes collided, begins again and shares none. Returns
    /// true if there was none.
    pub(super) fn has_own_blocks(&mut self) -> bool {
        let StepLoop { scheduler, lifecycle, block_contents, counters, .. } = self;
        let Some(contents) = block_contents.as_ref() else { return true };
        if scheduler.last_plan().cached_tokens == 0 {
            return true;
        }
        let mut is_sound = true;
        for at in 0..scheduler.last_plan().rows.len() {
            let PlanRow { idx, start, .. } = scheduler.last_plan().rows[at];
            let active = lifecycle.planned(idx);
            let Some(hashes) = active.hashes.as_ref().filter(|_| start % BLOCK_TOKENS as u32 == 0)
            else {
                continue;
            };
            let count = start as usize / BLOCK_TOKENS;
            if contents.have(count, hashes.root(), &active.tokens, scheduler.blocks(idx)) {
                active.status.set_cached(scheduler.state(idx).cached_tokens);
            } else {
                lifecycle.forget_hashes(idx, scheduler);
                add(&counters.hash_collisions, 1);
                is_sound = false;
            }
        }
        is_sound
    }

    /// Records the content of the blocks into which the plan's requests are swapped in.
    pub(super) fn fill_swapped_in(&mut self) {
        let StepLoop { scheduler, lifecycle, block_contents, .. } = self;
        let Some(contents) = block_contents else { return };
        for &idx in &scheduler.last_plan().swap_in {
            let active = lifecycle.planned(idx);
            if let Some(hashes) = &active.hashes {
                let computed = scheduler.state(idx).computed as usize;
                let blocks = scheduler.blocks(idx);
                contents.fill((0, computed), hashes.root(), &active.tokens, blocks);
            }
        }
    }

    /// Records the content of the blocks that rows of the newest batch fill whose tokens came after
    /// its launch. Blocks of requests whose logits are not finite have no content from now on: a
    /// device's attention may have brought NaN to earlier rows.
    pub(super) fn fill_late_contents(&mut self) {
        let StepLoop { scheduler, lifecycle, batch, block_contents, .. } = self;
        let Some(contents) = block_contents else { return };
        lifecycle.damaged().for_each(|idx| contents.spoil(scheduler.blocks(idx)));
        let fills = |of: &&Segment| (of.start as usize + 1).is_multiple_of(BLOCK_TOKENS);
        let pending = |of: &&Segment| batch.tokens[of.first_row as usize] == PENDING;
        for segment in batch.segments.iter().filter(fills).filter(pending) {
            let (idx, end) = (RequestIdx(segment.request), segment.start as usize + 1);
            let Some(active) = lifecycle.live(idx).filter(|active| active.tokens.len() >= end)
            else {
                continue;
            };
            if let Some(hashes) = &active.hashes {
                let (root, blocks) = (hashes.root(), batch.blocks(segment));
                contents.fill((end - 1, end), root, &active.tokens, blocks);
            }
        }
    }
}
