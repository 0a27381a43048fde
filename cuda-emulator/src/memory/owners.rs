//! Which block of the running launch wrote each grain of an allocation, to find races between
//! blocks.
//!
//! A block that has not yet taken part in any synchronisation with others (no atomic, no strong
//! access) has no order with them: if it touches what another block wrote, that is a race for
//! certain. After synchronisation nothing is claimed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Owners of an allocation's grains; made when a kernel first writes to it.
pub(crate) struct Owners {
    bytes: u64,
    /// One entry per byte, for the finest grain; a coarser one uses its first entry. Launch
    /// in the upper 40 bits, which no test wears out, block plus one in the lower 24. The pages
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

const BLOCK_BITS: u32 = 24;

/// Never 0, which is an unwritten entry.
fn entry(launch: u64, block: u64) -> u64 {
    (launch << BLOCK_BITS) | (block % ((1 << BLOCK_BITS) - 1) + 1)
}

fn block_of(entry: u64) -> u32 {
    (entry as u32 & ((1 << BLOCK_BITS) - 1)) - 1
}

impl Owners {
    pub(crate) fn new(bytes: u64) -> Owners {
        Owners { bytes, entries: OnceLock::new(), launch: AtomicU64::new(0) }
    }

    /// Notes a write; gives the block of another owner, if there is one.
    #[inline]
    pub(crate) fn write(
        &self,
        launch: u64,
        block: u64,
        grain: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<u32> {
        self.launch.store(launch, Relaxed);
        let entries = self.entries.get_or_init(|| Entries::new(self.bytes as usize));
        let mine = entry(launch, block);
        let mut other = None;
        let range = (offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize;
        for owner in entries.all().get(range).unwrap_or(&[]) {
            let old = owner.load(Relaxed);
            if old != mine {
                if old != 0 && old >> BLOCK_BITS == mine >> BLOCK_BITS {
                    // The entry stays, so that the lane at fault is found when lanes are looked at
                    // one by one.
                    other = Some(old);
                } else {
                    owner.store(mine, Relaxed);
                }
            }
        }
        other.map(block_of)
    }

    /// Notes a write of a block that may rightly write here.
    #[inline]
    pub(crate) fn take(&self, launch: u64, block: u64, grain: u32, offset: u64, bytes: u64) {
        self.launch.store(launch, Relaxed);
        let entries = self.entries.get_or_init(|| Entries::new(self.bytes as usize));
        let mine = entry(launch, block);
        let range = (offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize;
        entries.all().get(range).unwrap_or(&[]).iter().for_each(|owner| owner.store(mine, Relaxed));
    }

    /// The block that wrote any of a range in this launch, if it is another.
    #[inline]
    pub(crate) fn read(
        &self,
        launch: u64,
        block: u64,
        grain: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<u32> {
        if self.launch.load(Relaxed) != launch {
            return None;
        }
        let entries = self.entries.get()?;
        let mine = entry(launch, block);
        let range = (offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize;
        for owner in entries.all().get(range).unwrap_or(&[]) {
            let old = owner.load(Relaxed);
            if old != mine && old >> BLOCK_BITS == mine >> BLOCK_BITS && old != 0 {
                return Some(block_of(old));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_blocks_write_is_seen_in_the_same_launch_only() {
        let owners = Owners::new(64);
        assert_eq!(owners.read(1, 0, 2, 0, 64), None);
        assert_eq!(owners.write(1, 7, 2, 8, 8), None);
        assert_eq!(owners.read(1, 7, 2, 0, 64), None);
        assert_eq!(owners.read(1, 0, 2, 0, 8), None);
        assert_eq!(owners.read(1, 0, 2, 12, 4), Some(7));
        assert_eq!(owners.write(1, 0, 2, 12, 4), Some(7));
        assert_eq!(owners.read(2, 3, 2, 0, 64), None);
        assert_eq!(owners.write(2, 3, 2, 0, 64), None);
        // Launches far apart are not each other's, whatever of their numbers is alike.
        assert_eq!(owners.write(4096, 1, 2, 32, 8), None);
        assert_eq!(owners.write(8192, 2, 2, 32, 8), None);
        assert_eq!(owners.read(8192, 2, 2, 0, 64), None);
        owners.take(2, 5, 2, 0, 4);
        assert_eq!(owners.read(2, 5, 2, 0, 4), None);
        assert_eq!(owners.read(2, 5, 2, 4, 4), Some(3));
    }
}
