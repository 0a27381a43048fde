//! Which block of the running launch wrote each grain of an allocation, and which read it, and
//! when by their own clocks, to find races between blocks.
//!
//! An access races with another block's write, and a write with another block's read, unless the
//! block has acquired the other's clock ([`BlockOrder::knows`]). Of readers without an
//! order between them two are kept, and none of an allocation that no kernel has written.

use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ZeroedWords;
use crate::exec::order::BlockOrder;

/// Owners of an allocation's grains; made when a kernel first writes to it.
pub(crate) struct Owners {
    bytes: u64,
    /// One [`Stamp`] per byte, for the finest grain; a coarser one uses its first entry. The pages
    /// that are never touched cost nothing.
    writers: OnceLock<ZeroedWords>,
    /// The same of reads, [`READERS`] entries each; made with `writers`.
    readers: OnceLock<ZeroedWords>,
    /// The last launch that wrote here.
    launch: AtomicU64,
}

/// Reads of a grain that are kept. With one, a block that read first and writes last would hide the
/// others' reads.
const READERS: usize = 2;

/// An access of another block that an access races with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Race {
    pub(crate) block: u32,
    /// The other access is a write.
    pub(crate) with_write: bool,
}

/// Launch (32 bits, which no test wears out), block (18 bits) and the block's clock (14 bits) of an
/// access. 0: none, as clocks begin at 1.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u64);

impl Stamp {
    const CLOCK_BITS: u32 = 14;
    const BLOCK_BITS: u32 = 18;
    /// This and all later clocks, which are not checked.
    const LAST_CLOCK: u32 = (1 << Self::CLOCK_BITS) - 1;

    /// The stamp of a block's accesses now; none for a block beyond 18 bits, which is not
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

    /// Returns true if a block, whose own accesses are stamped `mine`, may race with this access.
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
        Owners {
            bytes,
            writers: OnceLock::new(),
            readers: OnceLock::new(),
            launch: AtomicU64::new(0),
        }
    }

    /// Records a write; returns the access that it races with, if any.
    #[inline]
    pub(crate) fn write(
        &self,
        launch: u64,
        order: &BlockOrder,
        grain: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<Race> {
        self.launch.store(launch, Relaxed);
        let bytes_here = self.bytes as usize;
        let writers = self.writers.get_or_init(|| ZeroedWords::new(bytes_here));
        let readers = self.readers.get_or_init(|| ZeroedWords::new(bytes_here * READERS));
        let mine = Stamp::of(launch, order);
        let range = range(grain, offset, bytes);
        let mut race = races_with(readers, of_readers(&range), mine, order)
            .map(|block| Race { block, with_write: false });
        for owner in writers.all().get(range).unwrap_or(&[]) {
            let old = Stamp(owner.load(Relaxed));
            if old == mine {
                continue;
            }
            if old.races(mine, order) {
                // The entry stays, so that the lane at fault is found when lanes are looked at one
                // by one.
                race = Some(Race { block: old.block(), with_write: true });
            } else {
                owner.store(mine.0, Relaxed);
            }
        }
        race
    }

    /// Records a read; returns the write of this launch that it races with, if any.
    #[inline]
    pub(crate) fn read(
        &self,
        launch: u64,
        order: &BlockOrder,
        grain: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<Race> {
        let (writers, readers) = (self.writers.get()?, self.readers.get()?);
        let mine = Stamp::of(launch, order);
        let range = range(grain, offset, bytes);
        for kept in readers.all().get(of_readers(&range)).unwrap_or(&[]).chunks_exact(READERS) {
            // In the place of a read that happened before this one; none where all are unordered.
            let replaced = kept.iter().find(|reader| {
                let old = Stamp(reader.load(Relaxed));
                old == mine || !old.races(mine, order)
            });
            if let Some(reader) = replaced.filter(|reader| reader.load(Relaxed) != mine.0) {
                reader.store(mine.0, Relaxed);
            }
        }
        if self.launch.load(Relaxed) != launch {
            return None;
        }
        races_with(writers, range, mine, order).map(|block| Race { block, with_write: true })
    }
}

/// Entries of `bytes` at `offset`.
fn range(grain: u32, offset: u64, bytes: u64) -> RangeInclusive<usize> {
    (offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize
}

/// Entries of the readers of `range`.
fn of_readers(range: &RangeInclusive<usize>) -> RangeInclusive<usize> {
    range.start() * READERS..=range.end() * READERS + READERS - 1
}

/// The block of the first entry in `range` that an access stamped `mine` races with.
#[inline]
fn races_with(
    entries: &ZeroedWords,
    range: RangeInclusive<usize>,
    mine: Stamp,
    order: &BlockOrder,
) -> Option<u32> {
    entries.all().get(range).unwrap_or(&[]).iter().find_map(|entry| {
        let other = Stamp(entry.load(Relaxed));
        (other != mine && other.races(mine, order)).then(|| other.block())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::order::{Strength, Strong, Words};

    const WRITE_OF_7: Option<Race> = Some(Race { block: 7, with_write: true });

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
        assert_eq!(owners.read(1, &block(0), 2, 12, 4), WRITE_OF_7);
        assert_eq!(owners.write(1, &block(0), 2, 12, 4), WRITE_OF_7);
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
        assert_eq!(owners.read(5, &reader, 2, 0, 4), Some(Race { block: 0, with_write: true }));
        words.access(&mut reader, (256, 4), (Strong::Update, strength), || ());
        assert_eq!(owners.read(5, &reader, 2, 0, 8), None);
        // Written after the release.
        assert_eq!(owners.read(5, &reader, 2, 16, 4), Some(Race { block: 0, with_write: true }));
        // Overwritten in order: now it is the reader's, and not ordered with the writer.
        assert_eq!(owners.write(5, &reader, 2, 0, 4), None);
        assert_eq!(owners.read(5, &writer, 2, 0, 4), Some(Race { block: 1, with_write: true }));
    }

    #[test]
    fn a_write_after_another_blocks_read_is_a_race_until_the_reader_has_released() {
        let (owners, words) = (Owners::new(64), Words::default());
        let strength = Strength { strong: true, acquires: true, releases: true };
        // Where no kernel has written, reads are not kept.
        assert_eq!(owners.read(1, &block(1), 2, 0, 4), None);
        assert_eq!(owners.write(1, &block(0), 2, 0, 4), None);
        let (mut reader, mut writer) = (block(1), block(2));
        assert_eq!(owners.read(2, &reader, 2, 0, 8), None);
        assert_eq!(owners.write(2, &reader, 2, 8, 4), None);
        let race = Some(Race { block: 1, with_write: false });
        assert_eq!(owners.write(2, &writer, 2, 0, 4), race);
        words.access(&mut reader, (256, 4), (Strong::Update, strength), || ());
        words.access(&mut writer, (256, 4), (Strong::Update, strength), || ());
        assert_eq!(owners.write(2, &writer, 2, 0, 4), None);
        // Of an earlier launch.
        assert_eq!(owners.write(3, &writer, 2, 4, 4), None);
        // The writer has read it too, after the other or before.
        for (launch, readers) in [(4, [1, 2]), (5, [2, 1])] {
            for reader in readers {
                assert_eq!(owners.read(launch, &block(reader), 2, 0, 4), None);
            }
            assert_eq!(owners.write(launch, &block(2), 2, 0, 4), race);
        }
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
