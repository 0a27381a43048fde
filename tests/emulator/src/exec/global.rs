//! Global memory: finding the allocation, and moving a warp's data.

use super::Cx;
use super::lanes::{FULL, LANES, lanes};
use super::memory::Buffer;
use super::order::Strong;
use crate::memory::{Allocation, Race, State};
use crate::ptx::program::Inst;
use crate::report::Kind;

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    Write,
    /// Reads and writes at once: an atomic.
    Update,
    /// A volatile, relaxed or acquiring read: part of synchronisation.
    Strong,
    /// A volatile, relaxed or releasing write.
    StrongWrite,
}

impl Cx<'_> {
    /// Host address of `bytes` at a device address, after all checks. `line` picks the memory of
    /// where the last access went.
    #[inline]
    pub(crate) fn global(
        &mut self,
        line: u32,
        address: u64,
        bytes: u64,
        align: u64,
        intent: Intent,
    ) -> Result<*mut u8, (Kind, String)> {
        if !address.is_multiple_of(align) {
            return Err((
                Kind::Misaligned,
                format!("global address {address:#x} is not a multiple of {align}"),
            ));
        }
        let table = &self.grid.table.sorted;
        let nearest = &mut self.warp.nearest[line as usize % 16];
        let mut allocation = table.get(*nearest as usize);
        if !allocation.is_some_and(|allocation| allocation.contains(address, bytes)) {
            let found = self.grid.table.index(address);
            *nearest = found.unwrap_or(0) as u32;
            allocation =
                found.map(|at| &table[at]).filter(|allocation| allocation.contains(address, bytes));
        }
        let Some(allocation) = allocation else { return Err(self.nowhere(address, bytes)) };
        if allocation.state() != State::Live {
            return Err((
                Kind::UseAfterFree,
                format!("{bytes} bytes at {address:#x} in {allocation}"),
            ));
        }
        let offset = address - allocation.base;
        let (launch, grain) = (self.grid.number, self.grid.kernel.global_grain);
        let writes = !matches!(intent, Intent::Read | Intent::Strong);
        if let Some(first) = self.grid.unfinished.filter(|_| !self.warp.waited)
            && (writes || allocation.writers.since(first, offset, bytes))
        {
            return Err(too_early(allocation, offset, bytes, writes));
        }
        if writes && self.grid.is_hopper {
            allocation.writers.write(launch, offset, bytes);
        }
        match intent {
            Intent::Write => {
                allocation.written.set(offset, bytes);
                let race = allocation.owners.write(launch, self.order, grain, offset, bytes);
                if let Some(race) = race {
                    return Err(raced(allocation, offset, bytes, race));
                }
            }
            Intent::Read | Intent::Update | Intent::Strong => {
                if !allocation.written.is(offset, bytes) {
                    return Err(unwritten(allocation, offset, bytes));
                }
                if intent == Intent::Read
                    && let Some(race) =
                        allocation.owners.read(launch, self.order, grain, offset, bytes)
                {
                    return Err(raced(allocation, offset, bytes, race));
                }
            }
            Intent::StrongWrite => allocation.written.set(offset, bytes),
        }
        Ok(allocation.host(address))
    }

    #[cold]
    fn nowhere(&self, address: u64, bytes: u64) -> (Kind, String) {
        let table = &self.grid.table;
        let inside =
            table.index(address).map(|at| &table.sorted[at]).filter(|a| a.contains(address, 1));
        let detail = match inside {
            Some(allocation) => {
                format!("{bytes} bytes at {address:#x} pass the end of {allocation}")
            }
            None => {
                format!("{bytes} bytes at {address:#x}, in no allocation{}", table.near(address))
            }
        };
        (Kind::OutOfBounds, detail)
    }

    pub(crate) fn global_gather(
        &mut self,
        i: &Inst,
        mask: u32,
        addresses: &[u64; LANES],
        size: usize,
        data: &mut Buffer,
    ) {
        if i.access.strength.strong {
            return self.strong_gather(i, mask, addresses, size, data);
        }
        let intent = Intent::Read;
        if mask == FULL && contiguous(addresses, size as u64) {
            let total = size * LANES;
            if let Ok(from) = self.global(i.line, addresses[0], total as u64, size as u64, intent) {
                // SAFETY: `global` found `total` bytes there, and the buffer holds WIDEST * LANES
                // >= total. Other blocks may write them at this moment only if the kernel races
                // with itself; then the bytes are anybody's, as on the device.
                unsafe { std::ptr::copy_nonoverlapping(from, data.0.as_mut_ptr(), total) };
                return;
            }
            // The lane at fault is found below.
        }
        for lane in lanes(mask) {
            match self.global(i.line, addresses[lane], size as u64, size as u64, intent) {
                // SAFETY: `global` found `size` bytes there; the lane's part of the buffer has
                // `size` bytes.
                Ok(from) => unsafe { copy(from, data.lane(lane, size).as_mut_ptr(), size) },
                Err((kind, detail)) => return self.fault(kind, lane, detail),
            }
        }
    }

    pub(crate) fn global_scatter(
        &mut self,
        i: &Inst,
        mask: u32,
        addresses: &[u64; LANES],
        size: usize,
        data: &mut Buffer,
    ) {
        if i.access.strength.strong {
            return self.strong_scatter(i, mask, addresses, size, data);
        }
        let intent = Intent::Write;
        if mask == FULL && contiguous(addresses, size as u64) {
            let total = size * LANES;
            if let Ok(to) = self.global(i.line, addresses[0], total as u64, size as u64, intent) {
                // SAFETY: as in `global_gather`, the other way.
                unsafe { std::ptr::copy_nonoverlapping(data.0.as_ptr(), to, total) };
                return;
            }
        }
        for lane in lanes(mask) {
            match self.global(i.line, addresses[lane], size as u64, size as u64, intent) {
                // SAFETY: as in `global_gather`, the other way.
                Ok(to) => unsafe { copy(data.lane(lane, size).as_ptr(), to, size) },
                Err((kind, detail)) => return self.fault(kind, lane, detail),
            }
        }
    }

    /// Strong loads: each lane's with its effect on the order between blocks.
    fn strong_gather(
        &mut self,
        i: &Inst,
        mask: u32,
        addresses: &[u64; LANES],
        size: usize,
        data: &mut Buffer,
    ) {
        for lane in lanes(mask) {
            let (address, bytes) = (addresses[lane], size as u64);
            let to = data.lane(lane, size).as_mut_ptr();
            match self.global(i.line, address, bytes, bytes, Intent::Strong) {
                Ok(from) => {
                    let access = (Strong::Load, i.access.strength);
                    // SAFETY: `global` found `size` bytes there; the lane's part of the buffer has
                    // `size` bytes.
                    let load = || unsafe { copy(from, to, size) };
                    self.grid.words.access(self.order, (address, bytes), access, load);
                }
                Err((kind, detail)) => return self.fault(kind, lane, detail),
            }
        }
    }

    /// Strong stores.
    fn strong_scatter(
        &mut self,
        i: &Inst,
        mask: u32,
        addresses: &[u64; LANES],
        size: usize,
        data: &mut Buffer,
    ) {
        for lane in lanes(mask) {
            let (address, bytes) = (addresses[lane], size as u64);
            let from = data.lane(lane, size).as_ptr();
            match self.global(i.line, address, bytes, bytes, Intent::StrongWrite) {
                Ok(to) => {
                    let access = (Strong::Store, i.access.strength);
                    // SAFETY: as in `strong_gather`, the other way.
                    let store = || unsafe { copy(from, to, size) };
                    self.grid.words.access(self.order, (address, bytes), access, store);
                }
                Err((kind, detail)) => return self.fault(kind, lane, detail),
            }
        }
    }
}

#[inline(always)]
fn contiguous(addresses: &[u64; LANES], size: u64) -> bool {
    let mut differences = 0;
    for lane in 0..LANES {
        differences |= addresses[lane] ^ addresses[0].wrapping_add(lane as u64 * size);
    }
    differences == 0
}

/// Moves `size` bytes, 4 and 8 in one piece, as strong accesses of other blocks expect.
///
/// # Safety
/// Both sides have `size` bytes.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, size: usize) {
    // SAFETY: the caller's promise; unaligned reads and writes, so alignment does not matter.
    unsafe {
        match size {
            2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned()),
            4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            16 => to.cast::<u128>().write_unaligned(from.cast::<u128>().read_unaligned()),
            _ => std::ptr::copy_nonoverlapping(from, to, size),
        }
    }
}

#[cold]
fn unwritten(allocation: &Allocation, offset: u64, bytes: u64) -> (Kind, String) {
    let gap = allocation.written.gap(offset, bytes).unwrap_or(offset);
    let address = allocation.base + offset;
    (Kind::Unwritten, format!("{bytes} bytes at {address:#x}: byte {gap} of {allocation}"))
}

#[cold]
fn too_early(allocation: &Allocation, offset: u64, bytes: u64, writes: bool) -> (Kind, String) {
    let why = if writes { "" } else { ", which a kernel wrote that may be at work" };
    let detail = format!("{bytes} bytes at offset {offset} of {allocation}{why}");
    (Kind::BeforeWait, detail)
}

#[cold]
fn raced(allocation: &Allocation, offset: u64, bytes: u64, race: Race) -> (Kind, String) {
    let address = allocation.base + offset;
    let (verb, block) = (if race.with_write { "written" } else { "read" }, race.block);
    let detail = format!(
        "{bytes} bytes at {address:#x} in {allocation}, {verb} by block number {block} of the same launch, with no release and acquire between them"
    );
    (Kind::GlobalRace, detail)
}
