//! Tokens of full KV blocks, by which blocks that were found by hash are compared.

use trail_scheduler::{BlockHash, PlanRow, RequestIdx, Scheduler, SchedulerConfig};

use super::lifecycle::Lifecycle;
use crate::backend::{BLOCK_TOKENS, Batch, PENDING, Segment};

/// The contents of the blocks of the KV cache, and of the host pool.
pub(super) struct PoolContents {
    pub(super) device: BlockContents,
    pub(super) host: BlockContents,
}

impl PoolContents {
    /// Blocks without content, as many as the scheduler has.
    pub(super) fn new(config: &SchedulerConfig) -> PoolContents {
        let [device, host] = [config.num_blocks, config.host_blocks]
            .map(|num_blocks| BlockContents::new(num_blocks as usize));
        PoolContents { device, host }
    }

    /// The requests of the plan that found blocks of other tokens by hash, on the device or on the
    /// host; the others' callers get the number of cached tokens.
    pub(super) fn collided(&self, scheduler: &Scheduler, lifecycle: &Lifecycle) -> Vec<RequestIdx> {
        let plan = scheduler.last_plan();
        let own = |contents: &BlockContents, idx, tokens: u32, blocks: &[u32]| {
            let active = lifecycle.planned(idx);
            let count = tokens as usize / BLOCK_TOKENS;
            active
                .hashes
                .as_ref()
                .is_none_or(|hashes| contents.have(count, hashes.root(), &active.tokens, blocks))
        };
        let mut collided = Vec::new();
        let hits = if plan.cached_tokens + plan.prompt_hits > 0 { plan.rows.len() } else { 0 };
        let at_block = |row: &&PlanRow| row.start.is_multiple_of(BLOCK_TOKENS as u32);
        for &PlanRow { idx, start, .. } in plan.rows[..hits].iter().filter(at_block) {
            match own(&self.device, idx, start, scheduler.blocks(idx)) {
                true => {
                    lifecycle.planned(idx).status.set_cached(scheduler.state(idx).cached_tokens)
                }
                false => collided.push(idx),
            }
        }
        for &idx in &plan.swap_in {
            let first = scheduler.copied_from(idx) * BLOCK_TOKENS as u32;
            let end = scheduler.copied_end(idx);
            let is_own = own(&self.device, idx, first, scheduler.blocks(idx))
                && own(&self.host, idx, end, scheduler.host_blocks(idx));
            if !is_own {
                collided.push(idx);
            }
        }
        collided
    }

    /// Records the content of the blocks that the plan's transfers fill.
    pub(super) fn record_transfers(&mut self, scheduler: &Scheduler, lifecycle: &Lifecycle) {
        let fill = |contents: &mut BlockContents, idx: RequestIdx, blocks| {
            let active = lifecycle.planned(idx);
            let Some(hashes) = &active.hashes else { return };
            let first = scheduler.copied_from(idx) as usize * BLOCK_TOKENS;
            let end = scheduler.copied_end(idx) as usize;
            contents.fill((first, end), hashes.root(), &active.tokens, blocks);
        };
        let plan = scheduler.last_plan();
        for &idx in &plan.swap_out {
            fill(&mut self.host, idx, scheduler.host_blocks(idx));
        }
        for &idx in &plan.swap_in {
            fill(&mut self.device, idx, scheduler.blocks(idx));
        }
    }

    /// Records the content of the blocks that rows of `batch` fill whose tokens came after its
    /// launch. Blocks of requests whose logits are not finite have no content from now on: a
    /// device's attention may have brought NaN to earlier rows.
    pub(super) fn record_late(
        &mut self,
        batch: &Batch,
        scheduler: &Scheduler,
        lifecycle: &Lifecycle,
    ) {
        lifecycle.damaged().for_each(|idx| self.device.spoil(scheduler.blocks(idx)));
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
                self.device.fill((end - 1, end), root, &active.tokens, blocks);
            }
        }
    }
}

/// The content of each full KV block, by which a block found by hash is compared with the request
/// that found it.
pub(super) struct BlockContents(Vec<Content>);

#[derive(Clone, Copy, Default)]
struct Content {
    tokens: [u32; BLOCK_TOKENS],
    /// The block before it, and how often that had been filled then; `None` for a first block.
    before: Option<(u32, u64)>,
    /// The root of its sequence, thus the salt.
    root: BlockHash,
    /// Times that the block was filled.
    fills: u64,
}

impl BlockContents {
    pub(super) fn new(num_blocks: usize) -> BlockContents {
        BlockContents(vec![Content::default(); num_blocks])
    }

    /// Records the content of the blocks that the positions `start..end` of a sequence fill:
    /// `tokens` and `blocks` are all of the request's, `root` is that of its salt.
    pub(super) fn fill(
        &mut self,
        (start, end): (usize, usize),
        root: BlockHash,
        tokens: &[u32],
        blocks: &[u32],
    ) {
        for at in start / BLOCK_TOKENS..end / BLOCK_TOKENS {
            let before = self.before(at, blocks);
            let content = &mut self.0[blocks[at] as usize];
            content.tokens.copy_from_slice(&tokens[at * BLOCK_TOKENS..][..BLOCK_TOKENS]);
            (content.before, content.root) = (before, root);
            content.fills += 1;
        }
    }

    /// The root of the sequence that filled `block` last, and its tokens there.
    pub(super) fn of(&self, block: u32) -> (BlockHash, &[u32]) {
        let content = &self.0[block as usize];
        (content.root, &content.tokens)
    }

    /// Lets `blocks` be those of no sequence: their KV may be damaged.
    fn spoil(&mut self, blocks: &[u32]) {
        for &block in blocks {
            let content = &mut self.0[block as usize];
            content.tokens.fill(u32::MAX);
            content.fills += 1;
        }
    }

    /// True if the first `count` of `blocks` have the first tokens of a sequence, and were filled
    /// one after the other: then their KV is that of the sequence.
    pub(super) fn have(
        &self,
        count: usize,
        root: BlockHash,
        tokens: &[u32],
        blocks: &[u32],
    ) -> bool {
        let pairs = tokens.chunks_exact(BLOCK_TOKENS).zip(blocks).take(count);
        pairs.enumerate().all(|(at, (tokens, &block))| {
            let content = &self.0[block as usize];
            let follows = content.before == self.before(at, blocks);
            content.tokens == tokens && follows && (at > 0 || content.root == root)
        })
    }

    fn before(&self, at: usize, blocks: &[u32]) -> Option<(u32, u64)> {
        let before = blocks[at.checked_sub(1)?];
        Some((before, self.0[before as usize].fills))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `have` compares what a block follows on, too: its KV depends on that.
    #[test]
    fn blocks_of_another_sequence_are_refused() {
        let (root, other_root) = (BlockHash(1), BlockHash(2));
        let tokens: Vec<u32> = (0..48).collect();
        let mut contents = BlockContents::new(6);
        contents.fill((0, 20), root, &tokens, &[2, 0]);
        contents.fill((20, 33), root, &tokens, &[2, 0, 1]);
        let have = |contents: &BlockContents, count, root, blocks: &[u32]| {
            contents.have(count, root, &tokens, blocks)
        };
        assert!(have(&contents, 2, root, &[2, 0, 1]) && !have(&contents, 2, root, &[0, 2]));
        assert!(!have(&contents, 3, root, &[2, 0, 1]), "the third was never full");
        assert!(!have(&contents, 1, other_root, &[2, 0, 1]), "another salt");
        // Equal tokens in the second block, after other ones.
        let other: Vec<u32> = (100..116).chain(16..32).collect();
        contents.fill((0, 32), root, &other, &[3, 4]);
        assert!(!have(&contents, 2, root, &[2, 4]));
        // Filled again, a block is no longer the one that others followed on.
        contents.fill((0, 16), root, &tokens, &[2]);
        assert!(!have(&contents, 2, root, &[2, 0]) && have(&contents, 1, root, &[2]));
        contents.spoil(&[2]);
        assert!(!have(&contents, 1, root, &[2]));
    }
}
