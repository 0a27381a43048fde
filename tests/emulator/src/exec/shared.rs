//! Shared memory of a cluster's blocks, and their warps' clocks. A block without a cluster is a
//! cluster of one.
//!
//! Time is a vector clock: every warp has a clock that barriers advance, and knows of each other
//! warp the clock up to which it has met it at a barrier. An access of warp v at clock e happened
//! before one of warp w if w knows v's clock to be past e. Lanes of one warp are ordered by
//! `bar.warp.sync` (and barriers) alone: lock step is this interpreter's, not the program's.
//!
//! Callers name a warp by its number in the block that runs ([`Shared::enter`]); clocks number
//! warps through the cluster, and so do messages.

use super::Cx;
use super::cluster_barrier::ClusterBarrier;
use super::lanes::map2;
pub(crate) use super::window::Manner;
use super::window::Window;
use crate::ptx::program::Inst;
use crate::report::Kind;

/// Most warps of a cluster's blocks together.
pub(crate) const WARPS: usize = 32;

/// Latest known clock of each warp.
pub(crate) type Clocks = [u32; WARPS];

/// Takes over the later clocks of `from`.
pub(super) fn join(to: &mut Clocks, from: &Clocks) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = (*to).max(from));
}

/// Shared addresses have these bits below a block's rank plus one, which `mapa` puts there; without
/// one they are of the block that runs.
const RANK_SHIFT: u32 = 24;

/// An address of `shared::cluster` in the block that it is of.
pub(super) fn inside(address: u64) -> u64 {
    address & ((1 << RANK_SHIFT) - 1)
}

/// The address in block `rank` of what lies at `address` in any block.
fn mapped(address: u32, rank: u32) -> u32 {
    inside(address.into()) as u32 | rank.wrapping_add(1) << RANK_SHIFT
}

/// `mapa.shared::cluster.u32 d, a, rank`
pub(crate) fn map_address(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    map2::<u32, u32, u32>(cx, i, mask, mapped);
}

/// Shared memory of a cluster.
pub(crate) struct Shared {
    /// One a block; the first `ranks` are in use.
    windows: Vec<Window>,
    ranks: usize,
    /// Number in the cluster of the block that runs.
    rank: usize,
    /// Warps of a block.
    warps: usize,
    /// `clocks[w][v]`: what warp w knows of warp v's clock; `clocks[w][w]` is its own.
    clocks: [Clocks; WARPS],
    now: u32,
    /// Clock of each warp up to which the async proxy sees its ordinary writes.
    proxied: Clocks,
    /// Clocks that each warp knew at its last fence for other blocks.
    fenced: [Clocks; WARPS],
    pub(super) barrier: ClusterBarrier,
}

/// Finding of an access: kind and message.
pub(crate) type Trouble = (Kind, String);

/// A kernel's needs of shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// Blocks of a cluster, and warps of a block.
    pub(crate) ranks: usize,
    pub(crate) warps: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    /// log2 of its smallest access.
    pub(crate) grain: u32,
    pub(crate) has_mbarriers: bool,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared {
            windows: Vec::new(),
            ranks: 0,
            rank: 0,
            warps: 0,
            clocks: [[0; WARPS]; WARPS],
            now: 0,
            proxied: [0; WARPS],
            fenced: [[0; WARPS]; WARPS],
            barrier: ClusterBarrier::default(),
        }
    }

    /// Prepares for a new cluster.
    pub(crate) fn reset(&mut self, needs: Needs) {
        let Needs { ranks, warps, bytes, grain, has_mbarriers } = needs;
        while self.windows.len() < ranks {
            self.windows.push(Window::new());
        }
        let readers = if has_mbarriers { ranks * warps } else { 0 };
        self.windows[..ranks].iter_mut().for_each(|window| window.reset(bytes, grain, readers));
        (self.ranks, self.warps, self.rank) = (ranks, warps, 0);
        self.clocks = [[0; WARPS]; WARPS];
        self.now = 1;
        self.proxied = [0; WARPS];
        self.fenced = [[0; WARPS]; WARPS];
        self.barrier = ClusterBarrier::of(ranks * warps);
        for warp in 0..WARPS {
            self.clocks[warp][warp] = 1;
        }
    }

    /// The block whose warps run from here on.
    pub(crate) fn enter(&mut self, rank: usize) {
        self.rank = rank;
    }

    /// The number in the cluster of warp `warp` of the block that runs.
    pub(super) fn agent(&self, warp: usize) -> usize {
        self.rank * self.warps + warp
    }

    /// Memory of the block that runs.
    pub(super) fn window(&mut self) -> &mut Window {
        &mut self.windows[self.rank]
    }

    /// Memory of block `rank` of the cluster.
    pub(super) fn window_of(&mut self, rank: usize) -> &mut Window {
        &mut self.windows[rank]
    }

    /// Block and address of an address of `shared::cluster`.
    pub(super) fn resolve(&self, address: u64) -> Result<(usize, u64), Trouble> {
        let block = (address >> RANK_SHIFT) as usize;
        let rank = block.checked_sub(1).unwrap_or(self.rank);
        self.check_rank(rank).map(|()| (rank, inside(address)))
    }

    /// Checks that the cluster has a block `rank` that has not ended.
    pub(super) fn check_rank(&self, rank: usize) -> Result<(), Trouble> {
        match self.windows[..self.ranks].get(rank) {
            None => {
                let detail = format!("block {rank} of a cluster of {} blocks", self.ranks);
                Err((Kind::OutOfBounds, detail))
            }
            Some(window) if window.has_ended => {
                Err((Kind::BlockEnded, format!("block {rank} of the cluster has ended")))
            }
            Some(_) => Ok(()),
        }
    }

    /// Place of an address of the block that runs.
    pub(super) fn here(&self, address: u64) -> (usize, u64) {
        (self.rank, address)
    }

    /// The block that runs has ended.
    pub(crate) fn end_block(&mut self) -> Result<(), Trouble> {
        self.window().has_ended = true;
        self.window().mbarriers.check_end()
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.window().bytes
    }

    /// Returns the clocks that `warp` knows.
    pub(crate) fn clocks(&self, warp: usize) -> Clocks {
        self.clocks[self.agent(warp)]
    }

    /// From here on `warp` knows `clocks` too.
    pub(crate) fn learn(&mut self, warp: usize, clocks: &Clocks) {
        let agent = self.agent(warp);
        join(&mut self.clocks[agent], clocks);
    }

    /// Advances a warp's clock: what it does from here on is after what it did.
    pub(crate) fn tick(&mut self, warp: usize) {
        let agent = self.agent(warp);
        self.now += 1;
        self.clocks[agent][agent] = self.now;
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
        self.check_at(self.here(address), warp, lane, bytes, manner)
    }

    /// The same in block `rank` of the cluster.
    #[inline]
    pub(super) fn check_at(
        &mut self,
        (rank, address): (usize, u64),
        warp: usize,
        lane: usize,
        bytes: u64,
        manner: Manner,
    ) -> Result<(), Trouble> {
        let agent = self.agent(warp);
        self.windows[rank].check(&self.clocks[agent], agent, lane, address, bytes, manner)
    }

    /// Marks the target of a copy, in block `rank`, as in flight, after the checks of a write.
    pub(crate) fn launch_copy(
        &mut self,
        (rank, address): (usize, u64),
        warp: usize,
        lane: usize,
        bytes: u64,
    ) -> Result<(), Trouble> {
        let agent = self.agent(warp);
        self.windows[rank].launch_copy(&self.clocks[agent], agent, lane, address, bytes)
    }

    /// The copy is waited for: from here on it is a write of this warp.
    pub(crate) fn land_copy(&mut self, warp: usize, address: u64, bytes: u64) {
        let clock = self.clocks(warp)[self.agent(warp)];
        self.window().land(address, bytes, clock, false);
    }

    /// A fence for other blocks: a relaxed arrival at the cluster's barrier publishes what `warp`
    /// knew at its last one.
    pub(crate) fn fence(&mut self, warp: usize) {
        self.tick(warp);
        let agent = self.agent(warp);
        self.fenced[agent] = self.clocks[agent];
    }

    pub(super) fn fenced(&self, warp: usize) -> Clocks {
        self.fenced[self.agent(warp)]
    }

    /// `fence.proxy.async`: what `warp` did and knows of is before the async proxy's next accesses.
    pub(crate) fn proxy_fence(&mut self, warp: usize) {
        self.tick(warp);
        let known = self.clocks(warp);
        join(&mut self.proxied, &known);
    }

    /// Checks that the last writes of a range were before a point at which `known` was known.
    pub(crate) fn check_unchanged(
        &mut self,
        address: u64,
        bytes: u64,
        known: &Clocks,
    ) -> Result<(), Trouble> {
        self.window().check_unchanged(address, bytes, known)
    }

    /// Checks a read of the async proxy on behalf of `warp`: a read, and what ordinary instructions
    /// wrote lies behind a proxy fence.
    pub(crate) fn check_async(
        &mut self,
        warp: usize,
        address: u64,
        bytes: u64,
    ) -> Result<(), Trouble> {
        let (agent, window) = (self.agent(warp), &mut self.windows[self.rank]);
        window.check_async((&self.clocks[agent], &self.proxied), agent, address, bytes)
    }
}
