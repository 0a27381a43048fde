//! Which block of the running launch wrote each grain of an allocation, and when by its own clock,
//! to find races between blocks.
//!
//! An access races with another block's write unless the block has acquired the writer's clock
//! ([`BlockOrder::knows`]). Reads are not kept: a write after another block's read is not found.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::exec::order::BlockOrder;

/// Owners of an allocation's grains; made when a kernel first writes to it.
pub(crate) struct Owners {
    bytes: u64,
    /// One [`Stamp`] per byte, for the finest grain; a coarser one uses its first entry. The pages
    /// that are never touched cost nothing.
    entries: OnceLock<Entries>,
    /// The last launch that wrote here.
    launch: AtomicU64,
}

struct Entries(*mut AtomicU64, usize);

// SAFETY: the pointer is to atomics, shared freely; it is freed once, when the last owner goes.
unsafe impl Send for Entries {}
// SAFETY: as above.
unsafe impl Sync for Entries {}

impl Entries {
    fn layout(count: usize) -> std::alloc::Layout {
        // A count of bytes of an allocation that exists: eight times it fits in the address space.
        std::alloc::Layout::array::<AtomicU64>(count.max(1))
            .unwrap_or(std::alloc::Layout::new::<AtomicU64>())
    }

    fn new(count: usize) -> Entries {
        // SAFETY: the layout is not empty; zero bytes are valid atomics.
        let at = unsafe { std::alloc::alloc_zeroed(Self::layout(count)) };
        Entries(at.cast(), if at.is_null() { 0 } else { count })
    }

    fn all(&self) -> &[AtomicU64] {
        if self.1 == 0 {
            return &[];
        }
        // SAFETY: `new` allocated that many zeroed entries.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        if self.1 > 0 {
            // SAFETY: allocated by `new` with this layout.
            unsafe { std::alloc::dealloc(self.0.cast(), Self::layout(self.1)) };
        }
    }
}

/// Launch (32 bits, which no test wears out), block (18 bits) and the block's clock (14 bits) of a
/// write. 0: unwritten, as clocks begin at 1.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u64);

impl Stamp {
    const CLOCK_BITS: u32 = 14;
    const BLOCK_BITS: u32 = 18;
    /// This and all later clocks, which are not checked.
    const LAST_CLOCK: u32 = (1 << Self::CLOCK_BITS) - 1;

    /// The stamp of a block's writes now; unwritten for a block beyond 18 bits, which is not
    /// checked.
    fn of(launch: u64, order: &BlockOrder) -> Stamp {
        if order.block() >> Self::BLOCK_BITS != 0 {
            return Stamp(0);
        }
        let clock = u64::from(order.clock().min(Self::LAST_CLOCK));
        Stamp(launch << 32 | order.block() << Self::CLOCK_BITS | clock)
    }

    fn block(self) -> u32 {
        self.0 as u32 >> Self::CLOCK_BITS
    }

    /// Returns true if a block, whose own writes are stamped `mine`, may race with this write.
    #[inline]
    fn races(self, mine: Stamp, order: &BlockOrder) -> bool {
        // Another launch's, or the block's own.
        if self.0 >> 32 != mine.0 >> 32 || self.0 >> Self::CLOCK_BITS == mine.0 >> Self::CLOCK_BITS
        {
            return false;
        }
        let clock = self.0 as u32 & Self::LAST_CLOCK;
        self.0 != 0 && clock != Self::LAST_CLOCK && !order.knows(self.block() as usize, clock)
    }
}

impl Owners {
    pub(crate) fn new(bytes: u64) -> Owners {
        Owners { bytes, entries: OnceLock::new(), launch: AtomicU64::new(0) }
    }

    /// Records a write; returns the block whose write it races with, if any.
    #[inline]
    pub(crate) fn write(
        &self,
        launch: u64,
        order: &BlockOrder,
        grain: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<u32> {
        self.launch.store(launch, Relaxed);
        let entries = self.entries.get_or_init(|| Entries::new(self.bytes as usize));
        let mine = Stamp::of(launch, order);
        let mut other = None;
        let range = (offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize;
        for owner in entries.all().get(range).unwrap_or(&[]) {
            let old = Stamp(owner.load(Relaxed));
            if old == mine {
                continue;
            }
            if old.races(mine, order) {
                // The entry stays, so that the lane at fault is found when lanes are looked at one
                // by one.
                other = Some(old.block());
            } else {
                owner.store(mine.0, Relaxed);
            }
        }
        other
    }

    /// The block whose write in this launch a read races with, if any.
    #[inline]
    pub(crate) fn read(
        &self,
        launch: u64,
        order: &BlockOrder,
        grain: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<u32> {
        if self.launch.load(Relaxed) != launch {
            return None;
        }
        let entries = self.entries.get()?;
        let mine = Stamp::of(launch, order);
        let range = (offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize;
        entries.all().get(range).unwrap_or(&[]).iter().find_map(|owner| {
            let old = Stamp(owner.load(Relaxed));
            (old != mine && old.races(mine, order)).then(|| old.block())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::order::{Strength, Strong, Words};

    fn block(number: u64) -> BlockOrder {
        let mut order = BlockOrder::default();
        order.reset(number);
        order
    }

    #[test]
    fn another_blocks_write_is_seen_in_the_same_launch_only() {
        let owners = Owners::new(64);
        assert_eq!(owners.read(1, &block(0), 2, 0, 64), None);
        assert_eq!(owners.write(1, &block(7), 2, 8, 8), None);
        assert_eq!(owners.read(1, &block(7), 2, 0, 64), None);
        assert_eq!(owners.read(1, &block(0), 2, 0, 8), None);
        assert_eq!(owners.read(1, &block(0), 2, 12, 4), Some(7));
        assert_eq!(owners.write(1, &block(0), 2, 12, 4), Some(7));
        assert_eq!(owners.read(2, &block(3), 2, 0, 64), None);
        assert_eq!(owners.write(2, &block(3), 2, 0, 64), None);
        // Launches far apart are not each other's, whatever of their numbers is alike.
        assert_eq!(owners.write(4096, &block(1), 2, 32, 8), None);
        assert_eq!(owners.write(8192, &block(2), 2, 32, 8), None);
        assert_eq!(owners.read(8192, &block(2), 2, 0, 64), None);
    }

    #[test]
    fn what_was_released_and_acquired_is_no_race() {
        let (owners, words) = (Owners::new(64), Words::default());
        let strength = Strength { strong: true, acquires: true, releases: true };
        let (mut writer, mut reader) = (block(0), block(1));
        assert_eq!(owners.write(5, &writer, 2, 0, 8), None);
        words.access(&mut writer, (256, 4), (Strong::Update, strength), || ());
        assert_eq!(owners.write(5, &writer, 2, 16, 8), None);
        assert_eq!(owners.read(5, &reader, 2, 0, 4), Some(0));
        words.access(&mut reader, (256, 4), (Strong::Update, strength), || ());
        assert_eq!(owners.read(5, &reader, 2, 0, 8), None);
        // Written after the release.
        assert_eq!(owners.read(5, &reader, 2, 16, 4), Some(0));
        // Overwritten in order: now it is the reader's, and not ordered with the writer.
        assert_eq!(owners.write(5, &reader, 2, 0, 4), None);
        assert_eq!(owners.read(5, &writer, 2, 0, 4), Some(1));
    }

    #[test]
    fn blocks_and_clocks_beyond_the_stamp_claim_nothing() {
        let owners = Owners::new(64);
        assert_eq!(owners.write(1, &block(1 << 18), 2, 0, 8), None);
        assert_eq!(owners.read(1, &block(0), 2, 0, 8), None);
        let mut late = block(3);
        (0..1 << 14).for_each(|_| late.fence());
        assert_eq!(owners.write(1, &late, 2, 8, 8), None);
        assert_eq!(owners.read(1, &block(0), 2, 8, 8), None);
    }
}
