//! Launch plans as values: (kernel, shape, chip) -> geometry, shared memory, splits, expected bytes
//! and flops.
//!
//! Pure functions; no geometry is decided anywhere else. A plan prints as one line.

#[cfg(test)]
mod agreement;
pub mod attention;
#[cfg(any(test, feature = "low-level"))]
pub mod bench;
pub mod gemm;
pub mod hopper;
pub mod megakernel;
pub mod order;
pub mod sampling;
pub mod shuffle;
pub mod step;

use std::fmt;
use trail_ptx::Target;

/// The properties of a chip that plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// The family whose cubins it runs; `None` for chips that compile the PTX.
    pub target: Option<Target>,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory of one block, bytes.
    pub shared_per_block: u32,
    /// Shared memory of one multiprocessor, bytes; each resident block takes 1 KiB of it for the
    /// driver.
    pub shared_per_multiprocessor: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
}

impl Chip {
    /// An A100 of 80 GB, for tests and for printing plans without a device.
    pub const A100: Chip = Chip {
        target: Some(Target::Sm80),
        multiprocessors: 108,
        shared_per_block: 163 * 1024,
        shared_per_multiprocessor: 164 * 1024,
        l2_bytes: 40 * 1024 * 1024,
    };
    /// An H200.
    pub const H200: Chip = Chip {
        target: Some(Target::Sm90a),
        multiprocessors: 132,
        shared_per_block: 227 * 1024,
        shared_per_multiprocessor: 228 * 1024,
        l2_bytes: 50 * 1024 * 1024,
    };
}

/// One launch of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The kernel's name in the table of trail-ptx.
    pub kernel: &'static str,
    /// The problem, for messages.
    pub shape: Shape,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: u32,
    /// Dynamic shared memory, bytes per block.
    pub shared_bytes: u32,
    /// Largest number of blocks that share one output.
    pub splits: u32,
    /// True if the kernel may begin while its predecessor in the stream ends (programmatic
    /// dependent launch, Hopper); the kernel then waits for it.
    pub overlaps: bool,
    /// True if its blocks wait for one another (cooperative launch), so that all must be resident.
    pub cooperative: bool,
    /// Bytes that must move to or from device memory.
    pub bytes: u64,
    /// Floating-point operations of the result's definition.
    pub flops: u64,
}

impl LaunchPlan {
    /// Blocks that are resident on one multiprocessor of `chip`, at least 1.
    pub fn resident(&self, chip: &Chip) -> u32 {
        resident(chip, self.kernel, self.block, self.shared_bytes).unwrap_or(1)
    }
}

/// Registers of a multiprocessor, and resident threads of the smallest supported one.
const REGISTERS: u32 = 65_536;
const THREADS: u32 = 1536;
/// Shared memory that the driver takes of every resident block.
const DRIVER_BYTES: u32 = 1024;

/// Blocks of `block` threads of a kernel that are resident on one multiprocessor, by shared memory,
/// registers and threads; `None`: there is no such kernel, or none fits.
fn resident(chip: &Chip, kernel: &str, block: u32, shared_bytes: u32) -> Option<u32> {
    let (_, entry) = trail_ptx::find(kernel)?;
    // Chips without the kernel's machine code compile sm_80's text.
    let found = chip.target.and_then(|target| entry.on(target)).or(entry.on(Target::Sm80))?;
    let bytes = shared_bytes + found.shared_bytes;
    let by_shared = chip.shared_per_multiprocessor / (bytes + DRIVER_BYTES);
    let by_registers = REGISTERS / (found.registers.next_multiple_of(8) * block);
    let blocks = by_shared.min(by_registers).min(THREADS / block);
    (blocks > 0 && bytes <= chip.shared_per_block).then_some(blocks)
}

/// Named extents, for messages. Small and fixed, so that a plan is a plain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Shape {
    extents: [(&'static str, u64); Shape::MAX_EXTENTS],
    count: usize,
}

impl Shape {
    /// Most extents of one shape.
    pub const MAX_EXTENTS: usize = 8;

    /// The extents named; at most [`Shape::MAX_EXTENTS`].
    pub fn new(extents: &[(&'static str, usize)]) -> Shape {
        let mut shape = Shape { count: extents.len(), ..Shape::default() };
        for (place, &(name, extent)) in shape.extents.iter_mut().zip(extents) {
            *place = (name, extent as u64);
        }
        shape
    }

    /// The extent called `name`.
    pub fn extent(&self, name: &str) -> Option<u64> {
        let named = self.extents[..self.count].iter().find(|(of, _)| *of == name);
        named.map(|(_, extent)| *extent)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, extent)) in self.extents[..self.count].iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{name}={extent}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LaunchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.grid;
        write!(f, "{}({}) grid {x}x{y}x{z} block {}", self.kernel, self.shape, self.block)?;
        write!(f, " shared {} B splits {}", self.shared_bytes, self.splits)?;
        write!(f, ", {:.3} MB, {:.3} GFLOP", self.bytes as f64 / 1e6, self.flops as f64 / 1e9)
    }
}
