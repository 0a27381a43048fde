//! Blocks for a request, taken from those behind it.

use super::*;

impl Reference {
    /// True if others may enter after so many were `passed` over.
    pub(super) fn goes_on(&self, passed: u32) -> bool {
        !self.policy.strict_order() && passed < self.config.max_lookahead
    }

    /// Evicts residents of `behind` for `idx`, which needs some blocks beyond `spare` and those
    /// that are `reserved`. Returns true if it has them, and true if they are reserved for it.
    pub(super) fn make_room(
        &mut self,
        idx: RequestIdx,
        needed: u32,
        (spare, reserved): (u32, u32),
        behind: &[(Key, RequestIdx, Phase)],
    ) -> (bool, bool) {
        let wanted = needed + spare + reserved;
        let missing = wanted.saturating_sub(self.free() + self.swapping_out());
        let victims = self.brake(self.victims(behind), missing);
        let reclaimable = self.reclaimable(&victims);
        let enough = needed == 0 || self.free() + self.swapping_out() + reclaimable >= wanted;
        let filling = self.filling(behind);
        let later = self.free() + self.swapping_out() + reclaimable + filling >= wanted;
        let grows = self.grows(idx, needed, spare.max(self.growth(idx)) + reserved);
        for victim in victims {
            if grows && enough && needed > 0 && self.free() + self.swapping_out() < wanted {
                self.evict(victim);
            }
        }
        let fits = grows && (needed == 0 || self.free() >= wanted);
        (fits, grows && (enough || later))
    }
}
