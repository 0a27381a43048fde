//! `mbarrier`: barriers in shared memory that count arrivals of threads and bytes of bulk copies.
//! The word in shared memory is opaque to programs; its state is kept here.

use std::collections::BTreeMap;

use super::Cx;
use super::lanes::lanes;
use super::memory::addresses;
use super::shared::{Manner, Shared, Trouble, WARPS};
use crate::ptx::program::Inst;
use crate::report::Kind;

/// Bytes of a barrier.
const BYTES: u64 = 8;

/// The barriers of a block, by shared address.
#[derive(Default)]
pub(crate) struct Mbarriers(BTreeMap<u64, Mbarrier>);

/// One barrier.
struct Mbarrier {
    /// Arrivals that end a phase.
    count: u32,
    /// Arrivals that are missing in this phase.
    pending: u32,
    /// Bytes that are expected and have not arrived.
    bytes: i64,
    parity: u32,
    /// A fence has shown the initialisation to the async proxy.
    is_shown: bool,
    /// Merged vector clock of this phase's arrivals, and that of the phase before.
    gathered: [u32; WARPS],
    released: [u32; WARPS],
    /// Copies whose bytes arrive once the barrier has been tested.
    copies: Vec<BulkCopy>,
}

/// A bulk copy on its way.
pub(crate) struct BulkCopy {
    pub(crate) warp: usize,
    /// The warp's clock at its issue.
    pub(crate) clock: u32,
    pub(crate) chunks: Vec<Chunk>,
}

/// 16 bytes, and the shared address that they go to.
pub(crate) struct Chunk {
    pub(crate) to: u64,
    pub(crate) bytes: [u8; 16],
}

impl Mbarriers {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    fn at(&mut self, address: u64) -> Result<&mut Mbarrier, Trouble> {
        self.0.get_mut(&address).ok_or_else(|| {
            let detail = format!("shared address {address:#x} was not initialised as an mbarrier");
            (Kind::MbarrierMisuse, detail)
        })
    }
}

impl Mbarrier {
    fn gather(&mut self, clocks: &[u32; WARPS]) {
        self.gathered.iter_mut().zip(clocks).for_each(|(clock, &more)| *clock = (*clock).max(more));
    }

    /// Ends the phase if nothing is missing.
    fn advance(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.parity ^= 1;
            self.pending = self.count;
            self.released = std::mem::replace(&mut self.gathered, [0; WARPS]);
        }
    }
}

impl Shared {
    fn arrive(&mut self, warp: usize, address: u64, expected: i64) -> Result<(), Trouble> {
        self.tick(warp);
        let clocks = self.clocks[warp];
        let barrier = self.mbarriers.at(address)?;
        barrier.bytes += expected;
        barrier.gather(&clocks);
        let Some(pending) = barrier.pending.checked_sub(1) else {
            let detail = format!(
                "the mbarrier at shared address {address:#x} waits for bytes, all its {} arrivals \
                 are there",
                barrier.count
            );
            return Err((Kind::MbarrierMisuse, detail));
        };
        barrier.pending = pending;
        barrier.advance();
        Ok(())
    }

    /// Checks that a bulk copy may count towards the barrier at `address`.
    pub(super) fn check_barrier(&mut self, address: u64) -> Result<(), Trouble> {
        if self.mbarriers.at(address)?.is_shown {
            return Ok(());
        }
        let detail = format!(
            "the mbarrier at shared address {address:#x} without a fence.mbarrier_init behind its \
             initialisation"
        );
        Err((Kind::MissingProxyFence, detail))
    }

    /// A copy that counts towards the barrier at `address`: arrives now, or `late`.
    pub(super) fn add_copy(
        &mut self,
        address: u64,
        copy: BulkCopy,
        late: bool,
    ) -> Result<(), Trouble> {
        if late {
            self.mbarriers.at(address)?.copies.push(copy);
            return Ok(());
        }
        self.arrive_copy(address, &copy)
    }

    fn arrive_copy(&mut self, address: u64, copy: &BulkCopy) -> Result<(), Trouble> {
        for Chunk { to, bytes } in &copy.chunks {
            self.bytes[*to as usize..][..bytes.len()].copy_from_slice(bytes);
            self.land_bulk(*to, bytes.len() as u64, copy.clock);
        }
        let barrier = self.mbarriers.at(address)?;
        barrier.gathered[copy.warp] = barrier.gathered[copy.warp].max(copy.clock + 1);
        barrier.bytes -= 16 * copy.chunks.len() as i64;
        barrier.advance();
        Ok(())
    }

    /// Has the phase of `parity` ended? Then `warp` is ordered behind it.
    fn test(&mut self, warp: usize, address: u64, parity: u32) -> Result<bool, Trouble> {
        let barrier = self.mbarriers.at(address)?;
        if barrier.parity == parity & 1 {
            return Ok(false);
        }
        let released = barrier.released;
        let known = &mut self.clocks[warp];
        known.iter_mut().zip(released).for_each(|(clock, more)| *clock = (*clock).max(more));
        Ok(true)
    }
}

impl Shared {
    /// The late copies of the barrier at `address` arrive.
    fn arrive_late(&mut self, address: u64) -> Result<(), Trouble> {
        for copy in std::mem::take(&mut self.mbarriers.at(address)?.copies) {
            self.arrive_copy(address, &copy)?;
        }
        Ok(())
    }

    /// Finds a barrier with bytes that have not arrived, or were not expected, when the block ends.
    pub(super) fn check_end(&self) -> Result<(), Trouble> {
        let open =
            |(_, barrier): &(&u64, &Mbarrier)| !barrier.copies.is_empty() || barrier.bytes != 0;
        let Some((address, _)) = self.mbarriers.0.iter().find(open) else { return Ok(()) };
        let detail =
            format!("the block ends with a copy on its way to the mbarrier at {address:#x}");
        Err((Kind::AsyncInFlight, detail))
    }
}

/// Calls `each` with the shared address of every lane, until one is in trouble.
fn for_lanes(
    cx: &mut Cx<'_>,
    i: &Inst,
    mask: u32,
    manner: Manner,
    mut each: impl FnMut(&mut Cx<'_>, usize, u64) -> Result<(), Trouble>,
) {
    let at = addresses(cx, i.s[0], i.imm);
    for lane in lanes(mask) {
        let checked = cx.shared.check(cx.warp.number, lane, at[lane], BYTES, manner);
        if let Err((kind, detail)) = checked.and_then(|()| each(cx, lane, at[lane])) {
            return cx.fault(kind, lane, detail);
        }
    }
}

/// `mbarrier.init.shared.b64 [a], count`
pub(crate) fn init(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let count = cx.warp.registers.narrow[i.s[1].index()];
    for_lanes(cx, i, mask, Manner::Write, |cx, lane, address| {
        if !(1..1 << 20).contains(&count[lane]) {
            return Err((Kind::MbarrierMisuse, format!("an mbarrier of {} arrivals", count[lane])));
        }
        let barrier = Mbarrier {
            count: count[lane],
            pending: count[lane],
            bytes: 0,
            parity: 0,
            is_shown: false,
            gathered: [0; WARPS],
            released: [0; WARPS],
            copies: Vec::new(),
        };
        cx.shared.mbarriers.0.insert(address, barrier);
        Ok(())
    });
}

/// `fence.mbarrier_init`
pub(crate) fn init_fence(cx: &mut Cx<'_>, _: &Inst, _: u32) {
    cx.shared.mbarriers.0.values_mut().for_each(|barrier| barrier.is_shown = true);
}

/// `fence.proxy.async`
pub(crate) fn proxy_fence(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    init_fence(cx, i, mask);
    cx.shared.proxy_fence(cx.warp.number);
}

/// `mbarrier.arrive.shared.b64 _, [a]` and, with a second source, `mbarrier.arrive.expect_tx`.
pub(crate) fn arrive(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let expected = (i.sources > 1).then(|| cx.warp.registers.narrow[i.s[1].index()]);
    for_lanes(cx, i, mask, Manner::Atomic, |cx, lane, address| {
        let bytes = expected.map_or(0, |bytes| i64::from(bytes[lane]));
        cx.shared.arrive(cx.warp.number, address, bytes)
    });
}

/// `mbarrier.try_wait.parity.shared.b64 p, [a], parity`, which does not wait here.
pub(crate) fn try_wait(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let parity = cx.warp.registers.narrow[i.s[1].index()];
    let mut ended = 0;
    for_lanes(cx, i, mask, Manner::Atomic, |cx, lane, address| {
        let is_ended = cx.shared.test(cx.warp.number, address, parity[lane])?;
        ended |= u32::from(is_ended) << lane;
        Ok(())
    });
    cx.warp.registers.set_pred(i.d[0], ended, mask);
    cx.warp.spins = ended != mask;
    // After the answer, so that a program that does not test again is found.
    for_lanes(cx, i, mask, Manner::Atomic, |cx, _, address| cx.shared.arrive_late(address));
}
