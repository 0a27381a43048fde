//! Requests that begin with the same tokens as others.

use super::Fill;
use crate::limits::BLOCK_TOKENS;
use crate::request::RequestIdx;

impl Fill<'_> {
    /// True if the block after the first `cached` ones of the request is computed by a row of the
    /// plan: it waits for that, and the blocks after it, instead of computing them as well.
    pub(super) fn is_being_computed(&self, idx: RequestIdx, cached: u32) -> bool {
        let hashes = &self.scheduler.hashes;
        let Some(hash) = hashes.at(idx, cached) else { return false };
        let end = (cached + 1) * BLOCK_TOKENS;
        if end >= self.scheduler.requests[idx].tokens() {
            // The block of its last token, which it computes in any case.
            return false;
        }
        let mut rows = self.scheduler.plan.rows.iter().filter(|row| row.start < end);
        rows.any(|row| hashes.at(row.idx, cached) == Some(hash))
    }
}
