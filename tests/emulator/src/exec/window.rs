//! One block's shared memory, and who touched it when; see [`super::shared`] for the clocks.

use super::mbarrier::Mbarriers;
use super::shared::{Clocks, Trouble};
use crate::memory::Written;
use crate::report::Kind;

const NO_WARP: u16 = u16::MAX;
const MANY: u8 = u8::MAX;

/// The last accesses of one grain of shared memory. 16 bytes.
#[derive(Clone, Copy)]
struct Grain {
    write_clock: u32,
    /// Newest clock of the readers since that write.
    read_clock: u32,
    /// Their warps.
    readers: u32,
    /// Warp << 5 | lane of the writer.
    writer: u16,
    /// The lane, if one warp's one lane read.
    read_lane: u8,
    flags: u8,
}

const UNTOUCHED: Grain =
    Grain { write_clock: 0, read_clock: 0, readers: 0, writer: NO_WARP, read_lane: MANY, flags: 0 };
/// The last write was an atomic.
const ATOMIC: u8 = 1;
/// An asynchronous copy to it has not been waited for.
const IN_FLIGHT: u8 = 2;
/// The last write was by the async proxy: a bulk copy.
const ASYNC: u8 = 4;

/// How an access takes part in races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Read,
    /// By the whole warp at once (`ldmatrix`): not ordered after other lanes' writes, but never
    /// itself a hazard within the warp.
    ReadTogether,
    Write,
    /// Does not race with other atomics.
    Atomic,
}

/// Shared memory of one block. Warps are numbered through the cluster here.
pub(crate) struct Window {
    pub(super) bytes: Vec<u8>,
    written: Written,
    grains: Vec<Grain>,
    /// Clock of each warp's last read of each grain, `[grains, warps]`, of a kernel with mbarriers:
    /// its warps meet by twos, so that the newest of all readers' clocks is no bound.
    reads: Vec<u32>,
    /// Warps of `reads`; 0 without.
    readers: usize,
    /// log2 of a grain's bytes.
    grain: u32,
    pub(super) mbarriers: Mbarriers,
    /// The block has ended: its memory may be another's.
    pub(super) has_ended: bool,
}

impl Window {
    pub(super) fn new() -> Window {
        Window {
            bytes: Vec::new(),
            written: Written::none(0),
            grains: Vec::new(),
            reads: Vec::new(),
            readers: 0,
            grain: 2,
            mbarriers: Mbarriers::default(),
            has_ended: false,
        }
    }

    /// Prepares for a new block; `readers` are its cluster's warps if it has mbarriers, else 0.
    pub(super) fn reset(&mut self, bytes: usize, grain: u32, readers: usize) {
        self.bytes.resize(bytes, 0);
        self.bytes.fill(0xDB);
        self.written = Written::none(bytes as u64);
        self.grain = grain;
        self.grains.clear();
        self.grains.resize((bytes >> grain) + 1, UNTOUCHED);
        self.readers = readers;
        self.reads.clear();
        self.reads.resize(self.grains.len() * readers, 0);
        self.mbarriers.clear();
        self.has_ended = false;
    }

    /// Bounds, alignment, written, races. `lane` of `warp`, which knows `known` of all warps'
    /// clocks, does `manner` to `address..address + bytes`.
    #[inline]
    pub(super) fn check(
        &mut self,
        known: &Clocks,
        warp: usize,
        lane: usize,
        address: u64,
        bytes: u64,
        manner: Manner,
    ) -> Result<(), Trouble> {
        if !address.is_multiple_of(bytes) {
            return Err((
                Kind::Misaligned,
                format!("shared address {address:#x} is not a multiple of {bytes}"),
            ));
        }
        if address >= self.bytes.len() as u64 || self.bytes.len() as u64 - address < bytes {
            return Err(self.outside(address, bytes));
        }
        self.race(known, warp, lane, address, bytes, manner)?;
        if manner == Manner::Write {
            self.written.set(address, bytes);
        } else if !self.written.is(address, bytes) {
            let gap = self.written.gap(address, bytes).unwrap_or(address);
            return Err((
                Kind::Unwritten,
                format!("{bytes} bytes at shared address {address:#x}: {gap:#x} was never written"),
            ));
        }
        Ok(())
    }

    #[cold]
    fn outside(&self, address: u64, bytes: u64) -> Trouble {
        (
            Kind::OutOfBounds,
            format!(
                "{bytes} bytes at shared address {address:#x}; the block has {}",
                self.bytes.len()
            ),
        )
    }

    #[inline]
    fn race(
        &mut self,
        known: &Clocks,
        warp: usize,
        lane: usize,
        address: u64,
        bytes: u64,
        manner: Manner,
    ) -> Result<(), Trouble> {
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        let clock = known[warp];
        let me = (warp << 5 | lane) as u16;
        for (at, grain) in self.grains[first..=last].iter_mut().enumerate() {
            let reads = (first + at) * self.readers;
            let reads = &mut self.reads[reads..reads + self.readers];
            if grain.flags & IN_FLIGHT != 0 {
                return Err(in_flight(grain.writer, address));
            }
            let atomics = manner == Manner::Atomic && grain.flags & ATOMIC != 0;
            if grain.writer != NO_WARP
                && grain.writer != me
                && !atomics
                && known[usize::from(grain.writer >> 5) & 31] <= grain.write_clock
            {
                return Err(raced(address, "write", grain.writer));
            }
            match manner {
                Manner::Read | Manner::ReadTogether => {
                    let lane = if manner == Manner::Read { lane as u8 } else { MANY - 1 };
                    let bit = 1 << warp;
                    if grain.readers & !bit != 0
                        && grain.readers & bit == 0
                        && grain.readers.count_ones() == 1
                    {
                        // An older reader that this warp has met at a barrier is covered by this
                        // one.
                        if known[grain.readers.trailing_zeros() as usize] > grain.read_clock {
                            (grain.readers, grain.read_lane) = (0, lane);
                        }
                    }
                    let again = grain.readers & bit != 0 && grain.read_clock == clock;
                    grain.read_lane = if again && grain.read_lane != lane { MANY } else { lane };
                    grain.readers |= bit;
                    grain.read_clock = grain.read_clock.max(clock);
                    if let Some(read) = reads.get_mut(warp) {
                        *read = clock;
                    }
                }
                Manner::Write | Manner::Atomic => {
                    if grain.readers != 0
                        && let Some(reader) = unordered_reader(grain, reads, known, warp, lane)
                    {
                        return Err(raced(address, "read", reader));
                    }
                    let flags = if manner == Manner::Atomic { ATOMIC } else { 0 };
                    *grain = Grain { write_clock: clock, writer: me, flags, ..UNTOUCHED };
                }
            }
        }
        Ok(())
    }

    /// Marks the target of a `cp.async` as in flight, after the checks of a write.
    pub(super) fn launch_copy(
        &mut self,
        known: &Clocks,
        warp: usize,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<(), Trouble> {
        self.check(known, warp, lane, address, bytes, Manner::Write)?;
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        self.grains[first..=last].iter_mut().for_each(|grain| grain.flags |= IN_FLIGHT);
        Ok(())
    }

    /// A copy has arrived, which counts as a write at `clock`; `is_bulk`: of the async proxy.
    pub(super) fn land(&mut self, address: u64, bytes: u64, clock: u32, is_bulk: bool) {
        let flags = if is_bulk { ASYNC } else { 0 };
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        for grain in &mut self.grains[first..=last] {
            grain.flags = grain.flags & !IN_FLIGHT | flags;
            grain.write_clock = clock;
        }
    }

    /// Checks that the last writes of a range were before a point at which `known` was known.
    pub(super) fn check_unchanged(
        &self,
        address: u64,
        bytes: u64,
        known: &Clocks,
    ) -> Result<(), Trouble> {
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        for grain in self.grains.get(first..=last).unwrap_or_default() {
            let is_newer = || known[usize::from(grain.writer >> 5) & 31] <= grain.write_clock;
            if grain.writer != NO_WARP && is_newer() {
                return Err(raced(address, "write under a product", grain.writer));
            }
        }
        Ok(())
    }

    /// Checks a read of the async proxy on behalf of `warp`: a read, and what ordinary instructions
    /// wrote lies behind a proxy fence.
    pub(super) fn check_async(
        &mut self,
        (known, proxied): (&Clocks, &Clocks),
        warp: usize,
        address: u64,
        bytes: u64,
    ) -> Result<(), Trouble> {
        self.check(known, warp, 0, address, bytes, Manner::ReadTogether)?;
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        for grain in &self.grains[first..=last] {
            let writer = usize::from(grain.writer >> 5) & 31;
            let is_ordinary = grain.writer != NO_WARP && grain.flags & ASYNC == 0;
            if is_ordinary && proxied[writer] <= grain.write_clock {
                let detail = format!(
                    "shared address {address:#x}, which warp {writer} wrote without a \
                     fence.proxy.async behind it"
                );
                return Err((Kind::MissingProxyFence, detail));
            }
        }
        Ok(())
    }
}

/// Has a reader not been met since it read?
#[inline]
fn unordered_reader(
    grain: &Grain,
    reads: &[u32],
    known: &Clocks,
    warp: usize,
    lane: usize,
) -> Option<u16> {
    let mut readers = grain.readers;
    while readers != 0 {
        let reader = readers.trailing_zeros() as usize;
        readers &= readers - 1;
        if known[reader] > reads.get(reader).copied().unwrap_or(grain.read_clock) {
            continue;
        }
        // ReadTogether (MANY - 1) and the lane itself are no hazard within the warp.
        let harmless =
            reader == warp && (grain.read_lane == MANY - 1 || usize::from(grain.read_lane) == lane);
        if !harmless {
            let lane = if grain.read_lane < 32 { u16::from(grain.read_lane) } else { 0 };
            return Some((reader as u16) << 5 | lane);
        }
    }
    None
}

#[cold]
fn raced(address: u64, what: &str, who: u16) -> Trouble {
    let (warp, lane) = (who >> 5, who & 31);
    (
        Kind::SharedRace,
        format!(
            "shared address {address:#x} with a {what} by warp {warp}, lane {lane}, no barrier between them"
        ),
    )
}

#[cold]
fn in_flight(who: u16, address: u64) -> Trouble {
    let (warp, lane) = (who >> 5, who & 31);
    (
        Kind::AsyncInFlight,
        format!(
            "shared address {address:#x}; the copy to it by warp {warp}, lane {lane} has not been waited for"
        ),
    )
}
