//! A block's shared memory, and who touched it when.
//!
//! Time is a vector clock: every warp has a clock that barriers advance, and knows of each other
//! warp the clock up to which it has met it at a barrier. An access of warp v at clock e happened
//! before one of warp w if w knows v's clock to be past e. Lanes of one warp are ordered by
//! `bar.warp.sync` (and barriers) alone: lock step is this interpreter's, not the program's.

use crate::memory::Written;
use crate::report::Kind;

/// Most warps of a block.
pub(crate) const WARPS: usize = 32;
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
/// A `cp.async` to it has not been waited for.
const IN_FLIGHT: u8 = 2;

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

/// Shared memory of one block.
pub(crate) struct Shared {
    pub(crate) bytes: Vec<u8>,
    written: Written,
    grains: Vec<Grain>,
    /// log2 of a grain's bytes.
    grain: u32,
    /// `clocks[w][v]`: what warp w knows of warp v's clock; `clocks[w][w]` is its own.
    pub(crate) clocks: [[u32; WARPS]; WARPS],
    now: u32,
}

/// Finding of an access: kind and message.
pub(crate) type Trouble = (Kind, String);

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared {
            bytes: Vec::new(),
            written: Written::none(0),
            grains: Vec::new(),
            grain: 2,
            clocks: [[0; WARPS]; WARPS],
            now: 0,
        }
    }

    /// Prepares for a new block.
    pub(crate) fn reset(&mut self, bytes: usize, grain: u32) {
        self.bytes.resize(bytes, 0);
        self.bytes.fill(0xDB);
        self.written = Written::none(bytes as u64);
        self.grain = grain;
        self.grains.clear();
        self.grains.resize((bytes >> grain) + 1, UNTOUCHED);
        self.clocks = [[0; WARPS]; WARPS];
        self.now = 1;
        for warp in 0..WARPS {
            self.clocks[warp][warp] = 1;
        }
    }

    /// Advances a warp's clock: what it does from here on is after what it did.
    pub(crate) fn tick(&mut self, warp: usize) {
        self.now += 1;
        self.clocks[warp][warp] = self.now;
    }

    /// Bounds, alignment, written, races. `lane` does `manner` to `address..address + bytes`.
    #[inline]
    pub(crate) fn check(
        &mut self,
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
        self.race(warp, lane, address, bytes, manner)?;
        if manner == Manner::Write {
            self.written.set(address, bytes);
        } else if !self.written.is(address, bytes) {
            let gap = self.written.gap(address, bytes).unwrap_or(address);
            return Err((
                Kind::Unwritten,
                format!(
                    "{bytes} bytes at shared address {address:#x}, of which {gap:#x} was never written"
                ),
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
        warp: usize,
        lane: usize,
        address: u64,
        bytes: u64,
        manner: Manner,
    ) -> Result<(), Trouble> {
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        let known = &self.clocks[warp];
        let clock = known[warp];
        let me = (warp << 5 | lane) as u16;
        for grain in &mut self.grains[first..=last] {
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
                }
                Manner::Write | Manner::Atomic => {
                    if grain.readers != 0
                        && let Some(reader) = unordered_reader(grain, known, warp, lane)
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
    pub(crate) fn launch_copy(
        &mut self,
        warp: usize,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<(), Trouble> {
        self.check(warp, lane, address, bytes, Manner::Write)?;
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        self.grains[first..=last].iter_mut().for_each(|grain| grain.flags |= IN_FLIGHT);
        Ok(())
    }

    /// The copy is waited for: from here on it is a write of this warp.
    pub(crate) fn land_copy(&mut self, warp: usize, address: u64, bytes: u64) {
        let (first, last) =
            ((address >> self.grain) as usize, ((address + bytes - 1) >> self.grain) as usize);
        let clock = self.clocks[warp][warp];
        for grain in &mut self.grains[first..=last] {
            grain.flags &= !IN_FLIGHT;
            grain.write_clock = clock;
        }
    }
}

/// Has a reader not been met since it read?
#[inline]
fn unordered_reader(grain: &Grain, known: &[u32; WARPS], warp: usize, lane: usize) -> Option<u16> {
    let mut readers = grain.readers;
    while readers != 0 {
        let reader = readers.trailing_zeros() as usize;
        readers &= readers - 1;
        if known[reader] > grain.read_clock {
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
            "shared address {address:#x}; warp {warp}, lane {lane} has not waited for its cp.async to it"
        ),
    )
}
