//! The decoded form of a kernel: what the interpreter runs.

use super::types::Class;
use crate::exec::Cx;
use crate::exec::order::Strength;

/// Runs one instruction for the lanes of a mask.
pub(crate) type Handler = fn(&mut Cx<'_>, &Inst, u32);

/// A function of one lane's values, for instructions that have no loop of their own.
#[derive(Clone, Copy)]
pub(crate) enum Scalar {
    None,
    One(fn(u64) -> u64),
    Two(fn(u64, u64) -> u64),
    Three(fn(u64, u64, u64) -> u64),
}

/// A register of one of three files: class in the two top bits, index below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot(pub(crate) u32);

impl Slot {
    const SHIFT: u32 = 30;

    pub(crate) fn new(class: Class, index: u32) -> Slot {
        let bits = match class {
            Class::Narrow => 0,
            Class::Wide => 1,
            Class::Pred => 2,
        };
        Slot(bits << Self::SHIFT | index)
    }

    pub(crate) fn class(self) -> Class {
        match self.0 >> Self::SHIFT {
            0 => Class::Narrow,
            1 => Class::Wide,
            _ => Class::Pred,
        }
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & ((1 << Self::SHIFT) - 1)) as usize
    }
}

/// How an instruction moves the program counter, or which part of the machine it needs.
#[derive(Clone, Copy)]
pub(crate) enum Flow {
    /// Registers only: cannot fail.
    Plain(Handler),
    /// May find a fault.
    Checked(Handler),
    /// To `target`; lanes meet again at `join` (the immediate post-dominator, or [`NEVER`]).
    Branch {
        target: u32,
        join: u32,
    },
    /// Through table `table` by the index in `s[0]`.
    Indexed {
        table: u32,
        join: u32,
    },
    Exit,
    Trap,
    /// Waits for (or, without `waits`, only arrives at) barrier `s[0]`; `s[1]` is the number of
    /// threads when `counted`.
    Barrier {
        waits: bool,
        counted: bool,
        aligned: bool,
        reduce: Option<Reduce>,
    },
    /// Lets other warps and blocks run: spin loops pass here.
    Yield,
    /// A test that a spin loop repeats: as [`Flow::Checked`], and where it fails ([`Warp::spins`])
    /// other warps run.
    ///
    /// [`Warp::spins`]: crate::exec::warp::Warp::spins
    Poll(Handler),
    /// The same, repeated until it succeeds.
    Wait(Handler),
}

/// Reductions over a barrier's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    Popc,
    And,
    Or,
}

/// Where lanes do not meet before they exit.
pub(crate) const NEVER: u32 = u32::MAX;

/// A memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Bytes of one element: 1, 2, 4, 8.
    pub(crate) bytes: u8,
    /// Elements a lane moves: 1, 2, 4, 8.
    pub(crate) count: u8,
    pub(crate) signed: bool,
    pub(crate) strength: Strength,
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Generic,
    Global,
    Const,
    Shared,
    /// Shared memory of any block of the cluster.
    Cluster,
    Local,
    Param,
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Const => "constant",
            Space::Shared => "shared",
            Space::Cluster => "cluster's shared",
            Space::Local => "local",
            Space::Param => "parameter",
        })
    }
}

/// One decoded instruction. Unused operands are 0.
#[derive(Clone)]
pub(crate) struct Inst {
    pub(crate) flow: Flow,
    /// Predicate that must hold (or, with `negated`, must not).
    pub(crate) guard: Option<Slot>,
    pub(crate) negated: bool,
    pub(crate) targets: u8,
    pub(crate) sources: u8,
    pub(crate) d: [Slot; 4],
    /// Accumulators of a warpgroup's product, read and written; of a wait, the registers of all
    /// products.
    pub(crate) accumulators: Box<[Slot]>,
    pub(crate) s: [Slot; 10],
    /// Byte offset of an address, or another constant of the instruction.
    pub(crate) imm: i64,
    pub(crate) access: Access,
    pub(crate) scalar: Scalar,
    /// Line of the PTX text.
    pub(crate) line: u32,
}

impl Inst {
    pub(crate) fn new(flow: Flow, line: u32) -> Inst {
        let strength = Strength::WEAK;
        let access = Access { space: Space::Generic, bytes: 4, count: 1, signed: false, strength };
        Inst {
            flow,
            guard: None,
            negated: false,
            targets: 0,
            sources: 0,
            d: [Slot(0); 4],
            accumulators: Box::default(),
            s: [Slot(0); 10],
            imm: 0,
            access,
            scalar: Scalar::None,
            line,
        }
    }

    pub(crate) fn push_target(&mut self, slot: Slot) {
        if let Some(place) = self.d.get_mut(usize::from(self.targets)) {
            *place = slot;
        }
        self.targets = self.targets.saturating_add(1);
    }

    pub(crate) fn push_source(&mut self, slot: Slot) {
        if let Some(place) = self.s.get_mut(usize::from(self.sources)) {
            *place = slot;
        }
        self.sources = self.sources.saturating_add(1);
    }

    /// Returns false if more operands were pushed than there are places.
    pub(crate) fn fits(&self) -> bool {
        usize::from(self.targets) <= self.d.len() && usize::from(self.sources) <= self.s.len()
    }

    pub(crate) fn targets(&self) -> &[Slot] {
        &self.d[..usize::from(self.targets)]
    }

    pub(crate) fn sources(&self) -> &[Slot] {
        &self.s[..usize::from(self.sources)]
    }
}

/// A register whose value is known before a warp starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Preset {
    Value(u64),
    Special(Special),
}

/// Special registers that do not change while a warp runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    ClusterId(u8),
    ClusterCount(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterRank,
    ClusterRanks,
    Lane,
    Warp,
    WarpCount,
    LaneMask(LaneMask),
    Sm,
    SmCount,
    GridId,
    DynamicShared,
    TotalShared,
}

/// `%lanemask_eq` and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A kernel ready to run.
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    pub(crate) narrow: usize,
    pub(crate) wide: usize,
    pub(crate) preds: usize,
    pub(crate) presets: Vec<(Slot, Preset)>,
    pub(crate) tables: Vec<Vec<u32>>,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: u64,
    pub(crate) static_shared: u64,
    pub(crate) local_bytes: u64,
    pub(crate) max_threads: u32,
    /// Blocks of a cluster in x, y, z.
    pub(crate) cluster: [u32; 3],
    /// log2 of the smallest shared-memory access: the grain of the race detector.
    pub(crate) grain: u32,
    /// The same of global memory.
    pub(crate) global_grain: u32,
    pub(crate) has_mbarriers: bool,
    /// The PTX, line by line.
    pub(crate) lines: std::sync::Arc<Vec<String>>,
}

impl Kernel {
    /// The text of a line, trimmed.
    pub(crate) fn text(&self, line: u32) -> &str {
        self.lines.get(line.saturating_sub(1) as usize).map_or("", |text| text.trim())
    }
}
