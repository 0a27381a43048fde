//! Blocks for a request of the walk, taken from residents ranked behind it.

use std::iter;

use super::Fill;
use crate::decision::Action;
use crate::key::{Key, Ranked};

use crate::scheduler::Scheduler;

impl Fill<'_> {
    /// Gives the candidate `needed` blocks so that `spare` stay free, and evicts others for them if
    /// it must. Returns false if there are not enough, even after evictions, or not yet; in the
    /// latter case they are reserved.
    pub(super) fn take_blocks(&mut self, to: Ranked, needed: u32, spare: u32) -> bool {
        let wanted = needed + spare + self.promised;
        let missing = self.cannot_free(wanted, to.key);
        if missing > 0 {
            if missing <= self.scheduler.swapping_in_behind(to.key) {
                self.promise(to, needed + spare);
            }
            return false;
        }
        while self.scheduler.free_after_transfers() < wanted {
            self.evict_worst(to);
        }
        if self.scheduler.blocks.free() < wanted {
            self.promise(to, needed + spare);
            return false;
        }
        self.scheduler.blocks.grow(to.idx, needed);
        true
    }

    /// Promises the candidate `blocks`, and those of its shared ones that it alone holds: it lets
    /// go of these when it is skipped.
    fn promise(&mut self, to: Ranked, blocks: u32) {
        let scheduler = &*self.scheduler;
        let enters = !scheduler.requests[to.idx].resident();
        let alone = if enters { scheduler.blocks.held_alone(to.idx) } else { 0 };
        self.promised += blocks + alone;
    }

    /// Blocks of `wanted` that are neither free, nor free after the transfers in flight, nor held
    /// by residents ranked behind `key` that may be evicted. Visits more
    /// than `wanted` residents only where they share blocks.
    fn cannot_free(&mut self, wanted: u32, key: Key) -> u32 {
        let is_first = self.is_first();
        let Scheduler { blocks, paused, running, brake, swap_state, .. } = &mut *self.scheduler;
        let missing = wanted.saturating_sub(blocks.free() + swap_state.swapping_out_blocks());
        if missing == 0 || brake.holds() && !is_first {
            return missing;
        }
        let running = running[self.running_first..self.running_end].iter().rev().copied();
        let worst_up = iter::successors(paused.last(), |victim| paused.prev(victim.idx));
        let victims = worst_up.take_while(|victim| victim.key > key).chain(running);
        let (mut left, mut tried) = (missing, 0);
        for victim in victims.clone() {
            left = left.saturating_sub(blocks.try_release(victim.idx));
            tried += 1;
            if left == 0 {
                break;
            }
        }
        victims.take(tried).for_each(|victim| blocks.end_trial(victim.idx));
        left
    }

    /// Takes the blocks of the worst resident ranked behind `to`, for it: of a paused one, else of
    /// a running one. They are free at once if the victim is recomputed later, or at the end of
    /// its transfer if it is swapped out.
    fn evict_worst(&mut self, to: Ranked) {
        let victim = match self.scheduler.paused.last().filter(|last| last.key > to.key) {
            Some(last) => {
                // The worst paused request may be the next one of the walk.
                self.paused = self.paused.filter(|&next| next != last);
                self.scheduler.paused.remove(last.idx);
                last.idx
            }
            None => {
                self.running_end -= 1;
                let idx = self.scheduler.running[self.running_end].idx;
                self.growth -= self.scheduler.config.reserve.growth(&self.scheduler.requests[idx]);
                idx
            }
        };
        let action = if self.scheduler.swap_out(victim) {
            Action::SwappedOut
        } else {
            self.scheduler.discard_kv(victim);
            Action::Evicted
        };
        self.scheduler.decide(action, victim, Some(to.idx));
    }
}
