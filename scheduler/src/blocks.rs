//! KV blocks of the device or of the host: which request holds which, in token order, and which of
//! those without a holder are still known by their content.

mod changes;
mod hashes;

use crate::index_list::IndexList;
use crate::limits::blocks_for;
use crate::request::RequestIdx;

pub use changes::BlockChange;
pub use hashes::BlockHash;
use hashes::HashIndex;
pub(crate) use hashes::RequestHashes;

/// Index of a KV block in the cache.
pub type BlockId = u32;

/// One table of block ids per index in one arena, a count of holders per block, and the blocks
/// without a holder: those without a hash, and those that are kept for their content until they are
/// needed.
pub(crate) struct Blocks {
    free: Vec<BlockId>,
    /// Hashed blocks without a holder, the next to be given away first: least recently held, and
    /// of a request's blocks the last one first, since the others are of use without it.
    cached: IndexList<BlockId>,
    max_cached: usize,
    /// `[block]`: tables that it is in; where no block has a hash that is one at the most, and not
    /// counted.
    holders: Vec<u32>,
    /// Blocks with more than one holder.
    shared: u32,
    /// `[request][stride]`. Zeroed memory costs no page until an index is used.
    tables: Vec<BlockId>,
    held: Vec<u32>,
    /// Capacity of one table: blocks of the longest context.
    stride: usize,
    total: u32,
    hashes: Option<HashIndex>,
    /// Hashed blocks after which a request may begin `[block]`; `None`: all.
    resumable: Option<Vec<bool>>,
}

impl Blocks {
    /// Up to `max_cached` blocks without a holder are known by their content; with 0 none is.
    pub(crate) fn new(
        num_blocks: u32,
        max_requests: u32,
        max_context: u32,
        max_cached: u32,
    ) -> Blocks {
        let stride = blocks_for(max_context).min(num_blocks) as usize;
        Blocks {
            free: (0..num_blocks).rev().collect(),
            cached: IndexList::new(if max_cached > 0 { num_blocks } else { 0 }),
            max_cached: max_cached as usize,
            holders: vec![0; num_blocks as usize],
            shared: 0,
            tables: vec![0; stride * max_requests as usize],
            held: vec![0; max_requests as usize],
            stride,
            total: num_blocks,
            hashes: (max_cached > 0).then(|| HashIndex::new(num_blocks, max_requests)),
            resumable: None,
        }
    }

    /// The same, where a request begins only after marked blocks.
    pub(crate) fn with_marked_only(self) -> Blocks {
        Blocks { resumable: Some(vec![false; self.total as usize]), ..self }
    }

    /// Blocks without a holder, those with a hash included.
    pub(crate) fn free(&self) -> u32 {
        (self.free.len() + self.cached.len()) as u32
    }

    pub(crate) fn used(&self) -> u32 {
        self.total - self.free()
    }

    pub(crate) fn held(&self, idx: RequestIdx) -> u32 {
        self.held[idx.index()]
    }

    /// The request's blocks, in token order.
    pub(crate) fn table(&self, idx: RequestIdx) -> &[BlockId] {
        let first = idx.index() * self.stride;
        &self.tables[first..first + self.held(idx) as usize]
    }

    /// Appends `count` free blocks to the request's table.
    pub(crate) fn grow(&mut self, idx: RequestIdx, count: u32) {
        assert!(self.held(idx) + count <= self.stride as u32, "a request outgrew its max_tokens");
        for _ in 0..count {
            let block = self.free.pop().unwrap_or_else(|| self.forget_oldest());
            self.hold(idx, block);
        }
    }

    /// Takes the block that was kept longest for its content; its hash is forgotten.
    fn forget_oldest(&mut self) -> BlockId {
        let block = self.cached.front().expect("as many blocks are free");
        self.cached.remove(block);
        self.hashes.as_mut().expect("a cached block has a hash").forget(block);
        self.set_resumable(block, false);
        block
    }

    /// Appends `block` to the request's table.
    fn hold(&mut self, idx: RequestIdx, block: BlockId) {
        let at = idx.index() * self.stride + self.held(idx) as usize;
        self.tables[at] = block;
        self.held[idx.index()] += 1;
        if self.hashes.is_some() {
            let holders = &mut self.holders[block as usize];
            *holders += 1;
            self.shared += u32::from(*holders == 2);
        }
    }

    /// Frees all blocks of the request.
    pub(crate) fn release(&mut self, idx: RequestIdx) {
        self.truncate(idx, 0);
    }

    /// Frees all but the request's first `kept` blocks. It holds at least that many.
    pub(crate) fn truncate(&mut self, idx: RequestIdx, kept: u32) {
        let first = idx.index() * self.stride;
        // Backwards, so that the next to grow gets them in the order they were held.
        for at in (first + kept as usize..first + self.held(idx) as usize).rev() {
            self.let_go(self.tables[at]);
        }
        self.held[idx.index()] = kept;
        if let Some(hashes) = &mut self.hashes {
            hashes.unpublish(idx, kept);
        }
    }

    fn let_go(&mut self, block: BlockId) {
        let Some(hashes) = &self.hashes else { return self.free.push(block) };
        let holders = &mut self.holders[block as usize];
        *holders -= 1;
        match *holders {
            0 if hashes.has(block) => {
                self.cached.push_back(block);
                if self.cached.len() > self.max_cached {
                    let oldest = self.forget_oldest();
                    self.free.push(oldest);
                }
            }
            0 => self.free.push(block),
            1 => self.shared -= 1,
            _ => {}
        }
    }

    /// Blocks that come free if the request lets go of all that it holds, after those for which
    /// this was called since [`Blocks::end_trial`]; each call needs one of that.
    pub(crate) fn try_release(&mut self, idx: RequestIdx) -> u32 {
        if self.shared == 0 {
            return self.held(idx);
        }
        let first = idx.index() * self.stride;
        let mut freed = 0;
        for at in first..first + self.held(idx) as usize {
            let holders = &mut self.holders[self.tables[at] as usize];
            *holders -= 1;
            freed += u32::from(*holders == 0);
        }
        freed
    }

    /// Takes a call of [`Blocks::try_release`] back.
    pub(crate) fn end_trial(&mut self, idx: RequestIdx) {
        if self.shared == 0 {
            return;
        }
        let first = idx.index() * self.stride;
        for at in first..first + self.held(idx) as usize {
            self.holders[self.tables[at] as usize] += 1;
        }
    }
}

/// Blocks by their content.
impl Blocks {
    /// True if a block is known by `hash`.
    pub(crate) fn knows(&self, hash: BlockHash) -> bool {
        self.hashes.as_ref().is_some_and(|hashes| hashes.find(hash.0).is_some())
    }

    /// Blocks of the request that no other holds.
    pub(crate) fn held_alone(&self, idx: RequestIdx) -> u32 {
        if self.shared == 0 {
            return self.held(idx);
        }
        let alone = |&&block: &&BlockId| self.holders[block as usize] == 1;
        self.table(idx).iter().filter(alone).count() as u32
    }

    /// Of the blocks of a sequence with these hashes, those from the first on that are known.
    pub(crate) fn known(&self, hashes: &[u128]) -> u32 {
        let Some(index) = &self.hashes else { return 0 };
        hashes.iter().take_while(|&&hash| index.find(hash).is_some()).count() as u32
    }

    /// The same, up to the last one after which a request may begin.
    pub(crate) fn find(&self, hashes: &[u128]) -> u32 {
        let known = self.known(hashes);
        let Some(resumable) = &self.resumable else { return known };
        let is_marked = |&hash: &u128| self.block_of(hash).is_some_and(|at| resumable[at as usize]);
        let last = hashes[..known as usize].iter().rposition(is_marked);
        last.map_or(0, |last| last as u32 + 1)
    }

    /// The block of `hash`.
    pub(crate) fn block_of(&self, hash: u128) -> Option<BlockId> {
        self.hashes.as_ref().and_then(|index| index.find(hash))
    }

    /// True if `block` has a hash and is marked.
    pub(crate) fn is_resumable(&self, block: BlockId) -> bool {
        self.resumable.as_ref().is_some_and(|resumable| resumable[block as usize])
    }

    /// Marks `block`, if it has a hash, or takes the mark back.
    pub(crate) fn set_resumable(&mut self, block: BlockId, is_resumable: bool) {
        let has_hash = self.hashes.as_ref().is_some_and(|hashes| hashes.has(block));
        if let Some(resumable) = &mut self.resumable {
            resumable[block as usize] = is_resumable && has_hash;
        }
    }

    /// Appends the blocks of these hashes, which [`Blocks::find`] counted, to the request's empty
    /// table.
    pub(crate) fn share(&mut self, idx: RequestIdx, hashes: &[u128]) {
        debug_assert!(hashes.is_empty() || self.held(idx) == 0, "shared blocks are the first ones");
        for &hash in hashes {
            let index = self.hashes.as_ref().expect("blocks were found by hash");
            let block = index.find(hash).expect("it was found");
            self.cached.remove(block);
            self.hold(idx, block);
        }
    }

    /// Makes the request's first blocks, whose tokens all have KV, known by their `hashes`.
    pub(crate) fn publish(&mut self, idx: RequestIdx, hashes: &[u128]) {
        let Some(index) = &mut self.hashes else { return };
        let first = idx.index() * self.stride;
        index.publish(idx, hashes, &self.tables[first..first + self.held[idx.index()] as usize]);
    }

    /// Records the changes of the known blocks from now on.
    pub(crate) fn record_changes(&mut self) {
        self.hashes.iter_mut().for_each(HashIndex::record_changes);
    }

    /// Takes the changes since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = BlockChange> {
        self.hashes.iter_mut().flat_map(HashIndex::take_changes)
    }
}

#[cfg(test)]
mod tests;
