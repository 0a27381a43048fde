//! Order between the blocks of a grid: release and acquire, by vector clocks.
//!
//! A block's clock advances at each of its releases and fences. A write is stamped with the clock
//! of its block (`memory::Owners`); it happened before another block's access if that block has
//! acquired the clock. Blocks pass clocks on through words that they access with strong operations:
//!
//! * a release publishes what the block knows, and its own clock, at the word; an acquire that
//!   reads the word takes that over;
//! * a relaxed write publishes what the block knew at its last fence, nothing without one; what a
//!   relaxed read finds counts from the block's next fence on;
//! * a read-modify-write adds to what is published at the word (it continues the release sequence);
//!   another block's plain store replaces it.
//!
//! A block is one unit here: what one of its threads acquires, all know, although the others would
//! need a barrier of the block for it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Clock of each block `[block]` up to which its writes are known; 0 beyond the end.
pub(super) type Clocks = Vec<u32>;

/// Takes over the later clocks of `from`.
pub(super) fn join(to: &mut Clocks, from: &[u32]) {
    if to.len() < from.len() {
        to.resize(from.len(), 0);
    }
    to.iter_mut().zip(from).for_each(|(to, from)| *to = (*to).max(*from));
}

/// Ordering of an access of global memory, as other blocks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strength {
    /// Volatile, relaxed or stronger: takes part in synchronisation, so not a data race itself.
    pub(crate) strong: bool,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}

impl Strength {
    pub(crate) const WEAK: Strength = Strength { strong: false, acquires: false, releases: false };

    /// From the modifier of an instruction. A scope of the block alone orders nothing between
    /// blocks.
    pub(crate) fn of(modifier: Option<&str>, within_block: bool) -> Strength {
        let (acquires, releases) = match modifier {
            None => return Strength::WEAK,
            Some(_) if within_block => (false, false),
            Some("acquire") => (true, false),
            Some("release") => (false, true),
            Some("acq_rel") => (true, true),
            Some(_) => (false, false),
        };
        Strength { strong: true, acquires, releases }
    }
}

/// Kind of a strong access of its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strong {
    Load,
    Store,
    Update,
}

/// A block's part in the order.
#[derive(Default)]
pub(crate) struct BlockOrder {
    block: usize,
    /// Stamp of the block's writes from here on; at least 1.
    clock: u32,
    known: Clocks,
    /// Found by relaxed reads: known from the next fence on.
    found: Clocks,
    /// Published by relaxed writes: what was known at the last fence. Empty before the first.
    fenced: Clocks,
}

impl BlockOrder {
    /// Prepares for block number `block` of a grid.
    pub(crate) fn reset(&mut self, block: u64) {
        self.block = block as usize;
        self.clock = 1;
        self.known.clear();
        self.found.clear();
        self.fenced.clear();
    }

    /// Number of the block in the grid.
    pub(crate) fn block(&self) -> u64 {
        self.block as u64
    }

    /// Stamp of the block's writes.
    pub(crate) fn clock(&self) -> u32 {
        self.clock
    }

    /// Returns true if what `block` wrote at `clock` happened before this block's next access.
    #[inline]
    pub(crate) fn knows(&self, block: usize, clock: u32) -> bool {
        self.known.get(block).is_some_and(|&known| known >= clock)
    }

    /// A fence at a scope beyond the block.
    pub(crate) fn fence(&mut self) {
        join(&mut self.known, &self.found);
        self.found.clear();
        self.fenced = self.release();
    }

    /// Returns the clocks that an operation on anything but a word of memory publishes.
    pub(super) fn publish(&mut self, releases: bool) -> Clocks {
        if releases { self.release() } else { self.fenced.clone() }
    }

    /// Acquires what such an operation published.
    pub(super) fn learn(&mut self, published: &Clocks) {
        join(&mut self.known, published);
    }

    /// The clocks that a release publishes; later writes get a later stamp.
    fn release(&mut self) -> Clocks {
        let mut published = self.known.clone();
        if published.len() <= self.block {
            published.resize(self.block + 1, 0);
        }
        published[self.block] = self.clock;
        self.clock += 1;
        published
    }
}

/// Shards of the words, so that blocks on several host threads seldom meet.
const SHARDS: usize = 16;

/// Clocks published at each word, by address / 4.
#[derive(Default)]
pub(crate) struct Words {
    shards: [Mutex<HashMap<u64, Clocks>>; SHARDS],
}

impl Words {
    /// Does `access`, a strong access of `bytes` (at most 16, aligned) at `address`, in one piece
    /// with its effect on the order.
    pub(crate) fn access<T>(
        &self,
        block: &mut BlockOrder,
        (address, bytes): (u64, u64),
        (kind, strength): (Strong, Strength),
        access: impl FnOnce() -> T,
    ) -> T {
        let shard = &self.shards[(address / 16) as usize % SHARDS];
        let mut words = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let result = access();
        let range = address / 4..=(address + bytes - 1) / 4;
        if kind != Strong::Store {
            let to = if strength.acquires { &mut block.known } else { &mut block.found };
            range.clone().filter_map(|word| words.get(&word)).for_each(|from| join(to, from));
        }
        if kind != Strong::Load {
            let published = if strength.releases { block.release() } else { block.fenced.clone() };
            for word in range {
                match (kind, published.is_empty()) {
                    (Strong::Update, true) => {}
                    (Strong::Update, false) => join(words.entry(word).or_default(), &published),
                    (_, true) => drop(words.remove(&word)),
                    (_, false) => drop(words.insert(word, published.clone())),
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAXED: Strength = Strength { strong: true, acquires: false, releases: false };
    const ACQUIRE: Strength = Strength { acquires: true, ..RELAXED };
    const RELEASE: Strength = Strength { releases: true, ..RELAXED };
    const ACQ_REL: Strength = Strength { acquires: true, releases: true, strong: true };
    const WORD: (u64, u64) = (64, 4);

    fn block(number: u64) -> BlockOrder {
        let mut order = BlockOrder::default();
        order.reset(number);
        order
    }

    /// True if block 1 knows block 0's first writes after both have accessed a word, with fences
    /// before block 0's and after block 1's access where they are asked for.
    fn ordered(write: (bool, Strong, Strength), read: (Strength, bool)) -> bool {
        let (words, mut writer, mut reader) = (Words::default(), block(0), block(1));
        if write.0 {
            writer.fence();
        }
        words.access(&mut writer, WORD, (write.1, write.2), || ());
        words.access(&mut reader, WORD, (Strong::Load, read.0), || ());
        if read.1 {
            reader.fence();
        }
        reader.knows(0, 1)
    }

    #[test]
    fn a_release_meets_an_acquire_and_a_relaxed_access_orders_nothing() {
        for kind in [Strong::Store, Strong::Update] {
            assert!(ordered((false, kind, RELEASE), (ACQUIRE, false)));
            assert!(ordered((false, kind, ACQ_REL), (ACQUIRE, false)));
            assert!(ordered((true, kind, RELAXED), (RELAXED, true)));
            assert!(ordered((true, kind, RELAXED), (ACQUIRE, false)));
            assert!(ordered((false, kind, RELEASE), (RELAXED, true)));
            assert!(!ordered((false, kind, RELAXED), (ACQUIRE, true)));
            assert!(!ordered((false, kind, RELEASE), (RELAXED, false)));
            assert!(!ordered((true, kind, RELAXED), (RELAXED, false)));
        }
    }

    #[test]
    fn writes_after_a_release_are_not_published() {
        let (words, mut writer, mut reader) = (Words::default(), block(0), block(1));
        words.access(&mut writer, WORD, (Strong::Update, RELEASE), || ());
        let later = writer.clock();
        words.access(&mut reader, WORD, (Strong::Update, ACQ_REL), || ());
        assert!(reader.knows(0, later - 1) && !reader.knows(0, later));
    }

    #[test]
    fn an_update_continues_what_was_released_and_a_store_ends_it() {
        for (kind, continues) in [(Strong::Update, true), (Strong::Store, false)] {
            let words = Words::default();
            let (mut first, mut second, mut third) = (block(0), block(1), block(2));
            words.access(&mut first, WORD, (Strong::Update, RELEASE), || ());
            words.access(&mut second, WORD, (kind, RELAXED), || ());
            words.access(&mut third, WORD, (Strong::Load, ACQUIRE), || ());
            assert_eq!(third.knows(0, 1), continues);
        }
    }

    #[test]
    fn order_is_transitive_and_words_are_apart() {
        let words = Words::default();
        let (mut first, mut second, mut third) = (block(0), block(1), block(2));
        words.access(&mut first, (64, 4), (Strong::Store, RELEASE), || ());
        words.access(&mut second, (64, 4), (Strong::Load, ACQUIRE), || ());
        words.access(&mut second, (68, 4), (Strong::Store, RELEASE), || ());
        words.access(&mut third, (72, 4), (Strong::Load, ACQUIRE), || ());
        assert!(!third.knows(0, 1));
        words.access(&mut third, (68, 4), (Strong::Load, ACQUIRE), || ());
        assert!(third.knows(0, 1) && third.knows(1, 1));
    }
}
