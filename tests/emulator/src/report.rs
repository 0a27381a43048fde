//! Findings: what a kernel, or the host, did wrong.

use std::fmt;

/// The kinds of fault that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An address in no live allocation.
    OutOfBounds,
    /// Memory that was freed, or is not allocated yet at this point of its stream.
    UseAfterFree,
    /// An address that its access width does not divide.
    Misaligned,
    /// A read of bytes that were never written.
    Unwritten,
    /// Two accesses of shared memory, at least one a write, without a barrier between them.
    SharedRace,
    /// Two blocks' accesses of global memory, at least one a write, without synchronisation.
    GlobalRace,
    /// An access of what a kernel before may still write, or a write, before `griddepcontrol.wait`.
    BeforeWait,
    /// Shared memory touched while an asynchronous copy to it is in flight.
    AsyncInFlight,
    /// A read of the async proxy of what ordinary instructions wrote, without a fence between.
    MissingProxyFence,
    /// An access of the shared memory of a block of the cluster that has ended.
    BlockEnded,
    /// An mbarrier that was not initialised, or with more arrivals than its count.
    MbarrierMisuse,
    /// A warpgroup's product without its fence or its wait.
    WgmmaOrder,
    /// Threads of a warp or block that do not meet at a barrier or at a `.sync` instruction.
    BarrierDivergence,
    /// `trap`, or an assertion of the kernel's.
    Trap,
    /// A kernel that makes no progress.
    Hang,
    /// Memory that was not freed before its context was destroyed.
    Leak,
    /// A fault of the host: a copy outside an allocation, a double free.
    Host,
    /// PTX that is wrong, or that the emulator does not know.
    Refused,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::OutOfBounds => "out-of-bounds access",
            Kind::UseAfterFree => "use after free",
            Kind::Misaligned => "misaligned access",
            Kind::Unwritten => "read of unwritten memory",
            Kind::SharedRace => "shared-memory race",
            Kind::GlobalRace => "global-memory race",
            Kind::BeforeWait => "access before griddepcontrol.wait",
            Kind::AsyncInFlight => "access to shared memory under cp.async in flight",
            Kind::MissingProxyFence => "missing proxy fence",
            Kind::BlockEnded => "access to a block that has ended",
            Kind::MbarrierMisuse => "mbarrier misuse",
            Kind::WgmmaOrder => "missing wgmma fence or wait",
            Kind::BarrierDivergence => "barrier divergence",
            Kind::Trap => "trap",
            Kind::Hang => "no progress",
            Kind::Leak => "leak",
            Kind::Host => "host error",
            Kind::Refused => "refused PTX",
        })
    }
}

/// One finding.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Kind of the finding.
    pub(crate) kind: Kind,
    /// Kernel, empty for faults of the host.
    pub(crate) kernel: String,
    /// Line of the PTX text and the instruction on it.
    pub(crate) line: u32,
    /// The instruction.
    pub(crate) instruction: String,
    /// `blockIdx`.
    pub(crate) block: [u32; 3],
    /// `threadIdx`.
    pub(crate) thread: [u32; 3],
    /// Address, allocation, the other party of a race.
    pub(crate) detail: String,
}

impl Finding {
    /// A fault of the host.
    pub(crate) fn host(kind: Kind, detail: impl Into<String>) -> Finding {
        let (kernel, instruction) = Default::default();
        Finding {
            kind,
            kernel,
            line: 0,
            instruction,
            block: [0; 3],
            thread: [0; 3],
            detail: detail.into(),
        }
    }

    /// The driver error that a launch with this finding ends in.
    pub(crate) fn code(&self) -> u32 {
        use crate::driver::error;
        match self.kind {
            Kind::Misaligned => error::MISALIGNED_ADDRESS,
            Kind::Trap => error::ILLEGAL_INSTRUCTION,
            Kind::Hang => error::LAUNCH_TIMEOUT,
            Kind::BarrierDivergence => error::LAUNCH_FAILED,
            _ => error::ILLEGAL_ADDRESS,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kernel.is_empty() {
            return write!(f, "{}: {}", self.kind, self.detail);
        }
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(
            f,
            "{}: kernel {}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), PTX line {} `{}`: {}",
            self.kind, self.kernel, self.line, self.instruction, self.detail
        )
    }
}
