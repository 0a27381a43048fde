//! `barrier.cluster`: the barrier of all threads of a cluster, with arrival and wait apart.

use super::Cx;
use super::order;
use super::shared::{Clocks, Shared, WARPS, join};
use crate::ptx::program::Inst;
use crate::report::Kind;

/// The barrier of a cluster.
#[derive(Default)]
pub(crate) struct ClusterBarrier {
    /// Warps that have not ended, and those that have arrived in this phase; a bit each.
    live: u32,
    arrived: u32,
    phase: u32,
    gathered: Known,
    released: Known,
}

/// Clocks that arrivals publish: of warps, and of blocks for global memory.
#[derive(Default)]
struct Known {
    warps: Clocks,
    blocks: order::Clocks,
}

impl ClusterBarrier {
    pub(super) fn of(warps: usize) -> ClusterBarrier {
        ClusterBarrier { live: u32::MAX >> (WARPS - warps), ..ClusterBarrier::default() }
    }

    /// Opens if all that have not ended are there.
    fn try_open(&mut self) {
        if self.arrived & self.live == self.live {
            self.arrived = 0;
            self.phase += 1;
            self.released = std::mem::take(&mut self.gathered);
        }
    }
}

impl Shared {
    /// `warp` has ended: the cluster's barrier waits for it no more.
    pub(super) fn end_warp(&mut self, warp: usize) {
        let bit = 1 << self.agent(warp);
        self.barrier.live &= !bit;
        self.barrier.try_open();
    }
}

/// All lanes of the warp that have not exited execute the instruction.
fn is_whole(cx: &mut Cx<'_>, mask: u32) -> bool {
    if mask != cx.warp.live {
        let detail = format!(
            "lanes {:#010x} of the warp are elsewhere (threads of one warp apart at a barrier are \
             not supported)",
            cx.warp.live & !mask
        );
        cx.fault(Kind::BarrierDivergence, mask.trailing_zeros() as usize, detail);
    }
    mask == cx.warp.live
}

/// `barrier.cluster.arrive{.release, .relaxed}`; `imm` is 1 if it releases. A relaxed arrival
/// publishes what lies before the last fence.
pub(crate) fn arrive(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if !is_whole(cx, mask) {
        return;
    }
    if cx.warp.meets.is_some() {
        let detail = "the warp has arrived before, and not waited since".to_owned();
        return cx.fault(Kind::BarrierDivergence, mask.trailing_zeros() as usize, detail);
    }
    let (warp, releases) = (cx.warp.number, i.imm == 1);
    cx.shared.tick(warp);
    let clocks = if releases { cx.shared.clocks(warp) } else { cx.shared.fenced(warp) };
    let bit = 1 << cx.shared.agent(warp);
    let barrier = &mut cx.shared.barrier;
    join(&mut barrier.gathered.warps, &clocks);
    order::join(&mut barrier.gathered.blocks, &cx.order.publish(releases));
    cx.warp.meets = Some(barrier.phase);
    barrier.arrived |= bit;
    barrier.try_open();
}

/// `barrier.cluster.wait{.acquire}`: repeated until the phase of the warp's arrival has ended.
pub(crate) fn wait(cx: &mut Cx<'_>, _: &Inst, mask: u32) {
    if !is_whole(cx, mask) {
        return;
    }
    let Some(phase) = cx.warp.meets else {
        let detail = "the warp has not arrived".to_owned();
        return cx.fault(Kind::BarrierDivergence, mask.trailing_zeros() as usize, detail);
    };
    cx.warp.spins = cx.shared.barrier.phase == phase;
    if !cx.warp.spins {
        cx.warp.meets = None;
        let clocks = cx.shared.barrier.released.warps;
        cx.shared.learn(cx.warp.number, &clocks);
        cx.order.learn(&cx.shared.barrier.released.blocks);
    }
}
