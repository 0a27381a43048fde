//! `mbarrier`: barriers in shared memory that count arrivals of threads and bytes of bulk copies.
//! The word in shared memory is opaque to programs; its state is kept here.

use std::collections::BTreeMap;

use super::Cx;
use super::lanes::lanes;
use super::memory::addresses;
use super::shared::{Clocks, Manner, Shared, Trouble, WARPS, join};
use crate::ptx::program::{Inst, Space};
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
    /// Warp that made it, numbered through the cluster, and its clock then.
    made_by: (usize, u32),
    /// A fence has shown the initialisation to the async proxy.
    is_shown: bool,
    /// Merged vector clock of this phase's arrivals, and that of the phase before.
    gathered: Clocks,
    released: Clocks,
    /// Copies whose bytes arrive once the barrier has been tested.
    copies: Vec<BulkCopy>,
}

/// A bulk copy on its way.
#[derive(Clone)]
pub(crate) struct BulkCopy {
    /// Warp that issued it, numbered through the cluster.
    pub(crate) warp: usize,
    /// The warp's clock at its issue.
    pub(crate) clock: u32,
    pub(crate) chunks: Vec<Chunk>,
}

/// 16 bytes, and the shared address that they go to.
#[derive(Clone, Copy)]
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

    /// Finds a barrier with bytes that have not arrived, or were not expected, when the block ends.
    pub(super) fn check_end(&self) -> Result<(), Trouble> {
        let open =
            |(_, barrier): &(&u64, &Mbarrier)| !barrier.copies.is_empty() || barrier.bytes != 0;
        let Some((address, _)) = self.0.iter().find(open) else { return Ok(()) };
        let detail =
            format!("the block ends with a copy on its way to the mbarrier at {address:#x}");
        Err((Kind::AsyncInFlight, detail))
    }
}

impl Mbarrier {
    /// Ends the phase if nothing is missing.
    fn advance(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.parity ^= 1;
            self.pending = self.count;
            self.released = std::mem::replace(&mut self.gathered, [0; WARPS]);
        }
    }
}

/// Places are a block's number in the cluster and an address of its shared memory.
impl Shared {
    fn mbarrier(&mut self, (rank, address): (usize, u64)) -> Result<&mut Mbarrier, Trouble> {
        self.window_of(rank).mbarriers.at(address)
    }

    /// Checks that the barrier at `at` was made before `warp` came here. Its word alone does not
    /// tell, as tests of other warps update it.
    fn check_made(&mut self, at: (usize, u64), warp: usize) -> Result<(), Trouble> {
        let (agent, known) = (self.agent(warp), self.clocks(warp));
        let (maker, clock) = self.mbarrier(at)?.made_by;
        if maker == agent || known[maker] > clock {
            return Ok(());
        }
        let detail = format!(
            "the mbarrier at shared address {:#x}, which warp {maker} made, no barrier between",
            at.1
        );
        Err((Kind::SharedRace, detail))
    }

    fn arrive(&mut self, warp: usize, at: (usize, u64), expected: i64) -> Result<(), Trouble> {
        self.check_made(at, warp)?;
        self.tick(warp);
        let (clocks, address) = (self.clocks(warp), at.1);
        let barrier = self.mbarrier(at)?;
        barrier.bytes += expected;
        join(&mut barrier.gathered, &clocks);
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

    /// Checks that a bulk copy of a lane may count towards the barrier at `at`.
    pub(super) fn check_barrier(
        &mut self,
        at: (usize, u64),
        warp: usize,
        lane: usize,
    ) -> Result<(), Trouble> {
        let address = at.1;
        self.check_made(at, warp)?;
        if self.mbarrier(at)?.is_shown {
            return self.check_at(at, warp, lane, BYTES, Manner::Atomic);
        }
        let detail = format!(
            "the mbarrier at shared address {address:#x} without a fence.mbarrier_init behind its \
             initialisation"
        );
        Err((Kind::MissingProxyFence, detail))
    }

    /// A copy that counts towards the barrier at `at`: arrives now, or `late`.
    pub(super) fn add_copy(
        &mut self,
        at: (usize, u64),
        copy: BulkCopy,
        late: bool,
    ) -> Result<(), Trouble> {
        if late {
            self.mbarrier(at)?.copies.push(copy);
            return Ok(());
        }
        self.arrive_copy(at, &copy)
    }

    fn arrive_copy(&mut self, at: (usize, u64), copy: &BulkCopy) -> Result<(), Trouble> {
        let window = self.window_of(at.0);
        for Chunk { to, bytes } in &copy.chunks {
            window.bytes[*to as usize..][..bytes.len()].copy_from_slice(bytes);
            window.land(*to, bytes.len() as u64, copy.clock, true);
        }
        let barrier = self.mbarrier(at)?;
        barrier.gathered[copy.warp] = barrier.gathered[copy.warp].max(copy.clock + 1);
        barrier.bytes -= 16 * copy.chunks.len() as i64;
        barrier.advance();
        Ok(())
    }

    /// Has the phase of `parity` ended? Then `warp` is ordered behind it.
    fn test(&mut self, warp: usize, at: (usize, u64), parity: u32) -> Result<bool, Trouble> {
        let barrier = self.mbarrier(at)?;
        if barrier.parity == parity & 1 {
            return Ok(false);
        }
        let released = barrier.released;
        self.learn(warp, &released);
        Ok(true)
    }

    /// The late copies of the barrier at `at` arrive.
    fn arrive_late(&mut self, at: (usize, u64)) -> Result<(), Trouble> {
        for copy in std::mem::take(&mut self.mbarrier(at)?.copies) {
            self.arrive_copy(at, &copy)?;
        }
        Ok(())
    }
}

/// Calls `each` with the place that every lane names, until one is in trouble.
fn for_lanes(
    cx: &mut Cx<'_>,
    i: &Inst,
    mask: u32,
    manner: Manner,
    mut each: impl FnMut(&mut Cx<'_>, usize, (usize, u64)) -> Result<(), Trouble>,
) {
    let addresses = addresses(cx, i.s[0], i.imm);
    for lane in lanes(mask) {
        let at = match i.access.space {
            Space::Cluster => cx.shared.resolve(addresses[lane]),
            _ => Ok(cx.shared.here(addresses[lane])),
        };
        let done = at.and_then(|at| {
            cx.shared.check_at(at, cx.warp.number, lane, BYTES, manner)?;
            each(cx, lane, at)
        });
        if let Err((kind, detail)) = done {
            return cx.fault(kind, lane, detail);
        }
    }
}

/// `mbarrier.init.shared.b64 [a], count`
pub(crate) fn init(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let count = cx.warp.registers.narrow[i.s[1].index()];
    for_lanes(cx, i, mask, Manner::Write, |cx, lane, (_, address)| {
        if !(1..1 << 20).contains(&count[lane]) {
            return Err((Kind::MbarrierMisuse, format!("an mbarrier of {} arrivals", count[lane])));
        }
        let warp = cx.shared.agent(cx.warp.number);
        let made_by = (warp, cx.shared.clocks(cx.warp.number)[warp]);
        let barrier = Mbarrier {
            count: count[lane],
            pending: count[lane],
            bytes: 0,
            parity: 0,
            made_by,
            is_shown: false,
            gathered: [0; WARPS],
            released: [0; WARPS],
            copies: Vec::new(),
        };
        cx.shared.window().mbarriers.0.insert(address, barrier);
        Ok(())
    });
}

/// `fence.mbarrier_init.release.cluster`: as a fence of all writes, not of barriers alone.
pub(crate) fn init_fence(cx: &mut Cx<'_>, _: &Inst, _: u32) {
    show(cx.shared);
    cx.shared.fence(cx.warp.number);
}

/// The copy engine sees this block's barriers.
fn show(shared: &mut Shared) {
    shared.window().mbarriers.0.values_mut().for_each(|barrier| barrier.is_shown = true);
}

/// `fence.proxy.async`
pub(crate) fn proxy_fence(cx: &mut Cx<'_>, _: &Inst, _: u32) {
    show(cx.shared);
    cx.shared.proxy_fence(cx.warp.number);
}

/// `mbarrier.arrive.shared{::cta, ::cluster}.b64 _, [a]` and, with a second source,
/// `mbarrier.arrive.expect_tx`.
pub(crate) fn arrive(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let expected = (i.sources > 1).then(|| cx.warp.registers.narrow[i.s[1].index()]);
    for_lanes(cx, i, mask, Manner::Atomic, |cx, lane, at| {
        let bytes = expected.map_or(0, |bytes| i64::from(bytes[lane]));
        cx.shared.arrive(cx.warp.number, at, bytes)
    });
}

/// `mbarrier.try_wait.parity.shared.b64 p, [a], parity`, which does not wait here.
pub(crate) fn try_wait(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let parity = cx.warp.registers.narrow[i.s[1].index()];
    let mut ended = 0;
    for_lanes(cx, i, mask, Manner::Atomic, |cx, lane, at| {
        let is_ended = cx.shared.test(cx.warp.number, at, parity[lane])?;
        ended |= u32::from(is_ended) << lane;
        Ok(())
    });
    cx.warp.registers.set_pred(i.d[0], ended, mask);
    cx.warp.spins = ended != mask;
    // After the answer, so that a program that does not test again is found.
    for_lanes(cx, i, mask, Manner::Atomic, |cx, _, at| cx.shared.arrive_late(at));
}
