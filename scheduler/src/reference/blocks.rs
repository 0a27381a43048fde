//! Blocks of the reference, each with a number that is never used again.

use std::collections::{BTreeMap, BTreeSet};

use crate::{BlockHash, RequestIdx};

#[derive(Default)]
pub(super) struct RefBlocks {
    num_blocks: u32,
    /// Most blocks of `cached`; 0: hashes have no effect.
    max_cached: u32,
    next: u64,
    tables: BTreeMap<RequestIdx, Vec<u64>>,
    /// Tables that have each block; none for a block in no table.
    holders: BTreeMap<u64, u32>,
    /// Blocks of each request that `publish` has looked at.
    published: BTreeMap<RequestIdx, usize>,
    known: BTreeMap<BlockHash, u64>,
    /// Known blocks that no table has, by the time since then, the longest first.
    cached: Vec<u64>,
    /// Hashes of known blocks after which a request may begin; `None`: all.
    marked: Option<BTreeSet<BlockHash>>,
}

impl RefBlocks {
    pub(super) fn new(num_blocks: u32, max_cached: u32) -> RefBlocks {
        RefBlocks { num_blocks, max_cached, ..RefBlocks::default() }
    }

    /// The same, where a request begins only after marked blocks.
    pub(super) fn with_marked_only(self) -> RefBlocks {
        RefBlocks { marked: Some(BTreeSet::new()), ..self }
    }

    /// Marks the known block of `hash`, or takes the mark back.
    pub(super) fn set_resumable(&mut self, hash: BlockHash, is_marked: bool) {
        let Some(marked) = &mut self.marked else { return };
        match is_marked {
            true => marked.insert(hash),
            false => marked.remove(&hash),
        };
    }

    pub(super) fn table(&self, idx: RequestIdx) -> &[u64] {
        self.tables.get(&idx).map_or(&[], |table| table)
    }

    pub(super) fn held(&self, idx: RequestIdx) -> u32 {
        self.table(idx).len() as u32
    }

    pub(super) fn free(&self) -> u32 {
        self.num_blocks - self.used()
    }

    /// Blocks in some table.
    pub(super) fn used(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Blocks that no other table has.
    pub(super) fn held_only_by(&self, victims: &[RequestIdx]) -> u32 {
        let mut left = self.holders.clone();
        for block in victims.iter().flat_map(|&idx| self.table(idx)) {
            *left.get_mut(block).unwrap() -= 1;
        }
        left.values().filter(|&&holders| holders == 0).count() as u32
    }

    pub(super) fn grow(&mut self, idx: RequestIdx, count: u32) {
        for _ in 0..count {
            self.hold(idx, self.next);
            self.next += 1;
        }
        self.forget_above(self.num_blocks - self.used());
    }

    fn forget_above(&mut self, room: u32) {
        while self.cached.len() as u32 > room {
            let block = self.cached.remove(0);
            self.known.retain(|_, known| *known != block);
        }
        if let Some(marked) = &mut self.marked {
            marked.retain(|hash| self.known.contains_key(hash));
        }
    }

    fn hold(&mut self, idx: RequestIdx, block: u64) {
        self.tables.entry(idx).or_default().push(block);
        *self.holders.entry(block).or_default() += 1;
    }

    pub(super) fn truncate(&mut self, idx: RequestIdx, kept: u32) {
        let Some(table) = self.tables.get_mut(&idx) else { return };
        let freed = table.split_off((kept as usize).min(table.len()));
        for block in freed.into_iter().rev() {
            let holders = self.holders.get_mut(&block).unwrap();
            *holders -= 1;
            let is_held = *holders > 0;
            if !is_held {
                self.holders.remove(&block);
            }
            if !is_held && self.known.values().any(|known| *known == block) {
                self.cached.push(block);
            }
            self.forget_above(self.max_cached);
        }
        let published = self.published.entry(idx).or_default();
        *published = (*published).min(kept as usize);
    }

    pub(super) fn knows(&self, hash: BlockHash) -> bool {
        self.known.contains_key(&hash)
    }

    /// The hashes by which blocks are known, in order.
    pub(super) fn known(&self) -> impl Iterator<Item = &BlockHash> {
        self.known.keys()
    }

    /// Of the blocks of a sequence with these hashes, the first ones that are known, up to a marked
    /// one.
    pub(super) fn find(&self, hashes: &[BlockHash]) -> u32 {
        let known = hashes.iter().take_while(|hash| self.known.contains_key(hash)).count();
        let is_end = |count: &usize| match (&self.marked, count) {
            (None, _) | (_, 0) => true,
            (Some(marked), &count) => marked.contains(&hashes[count - 1]),
        };
        (0..=known).rev().find(is_end).unwrap_or(0) as u32
    }

    pub(super) fn share(&mut self, idx: RequestIdx, hashes: &[BlockHash]) {
        for hash in hashes {
            let block = self.known[hash];
            self.cached.retain(|cached| *cached != block);
            self.hold(idx, block);
        }
    }

    /// Makes the request's first blocks known by their hashes.
    pub(super) fn publish(&mut self, idx: RequestIdx, hashes: &[BlockHash]) {
        let table = self.tables.get(&idx).map_or(&[][..], |table| table);
        let published = self.published.entry(idx).or_default();
        for (at, (&hash, &block)) in hashes.iter().zip(table).enumerate().skip(*published) {
            if self.max_cached == 0 || *self.known.entry(hash).or_insert(block) != block {
                break;
            }
            *published = at + 1;
        }
    }
}
