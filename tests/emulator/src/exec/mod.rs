//! The interpreter. A [`grid::Grid`] is a launch; its blocks run on host threads, a
//! [`block::Block`] runs its warps in turn, and a [`warp::Warp`] runs its lanes in lock step.

pub(crate) mod atomics;
pub(crate) mod block;
pub(crate) mod bulk;
pub(crate) mod cluster;
pub(crate) mod cluster_barrier;
pub(crate) mod copies;
pub(crate) mod global;
pub(crate) mod grid;
pub(crate) mod lanes;
pub(crate) mod local;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod mma;
pub(crate) mod numerics;
pub(crate) mod ops;
pub(crate) mod order;
pub(crate) mod shared;
pub(crate) mod special;
pub(crate) mod sync;
pub(crate) mod warp;
pub(crate) mod wgmma;
pub(crate) mod window;

use crate::report::{Finding, Kind};

/// Context of an instruction: its warp, its block's shared memory, its launch.
pub(crate) struct Cx<'a> {
    pub(crate) warp: &'a mut warp::Warp,
    pub(crate) shared: &'a mut shared::Shared,
    /// The block's part in the order between blocks.
    pub(crate) order: &'a mut order::BlockOrder,
    pub(crate) grid: &'a grid::Grid,
    pub(crate) block: [u32; 3],
}

impl Cx<'_> {
    /// Records the first fault of the warp; the loop in [`warp`] stops after the instruction.
    #[cold]
    pub(crate) fn fault(&mut self, kind: Kind, lane: usize, detail: String) {
        if self.warp.fault.is_none() {
            let thread = self.grid.thread(self.warp.number, lane);
            let kernel = self.grid.kernel.name.clone();
            let (line, instruction) = (0, String::new());
            self.warp.fault = Some(Box::new(Finding {
                kind,
                kernel,
                line,
                instruction,
                block: self.block,
                thread,
                detail,
            }));
        }
    }
}
