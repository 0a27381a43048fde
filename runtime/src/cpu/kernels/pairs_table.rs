//! Dispatch table of the products of pairs of bf16 of one instruction.

use crate::cpu::Isa;
use crate::cpu::shared::SharedMut;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::{Avx512, Avx512Bf16};
use crate::cpu::simd::{PlainPairs, Portable};

use super::Product;
use super::pairs::{self, PairLoops, Pairs};
use super::product::Block;
use super::stored::TILE_COLS;
use super::tile::Columns;

/// Products of pairs by one instruction. A reference proves that the CPU has it.
pub(crate) struct PairKernels {
    /// Name of the instruction's extension.
    pub(crate) name: &'static str,
    /// Instruction set of the registers.
    isa: Isa,
    is_available: fn() -> bool,
    round_row: unsafe fn(&[f32], usize, &SharedMut<'_, f32>),
    product: unsafe fn(Product<'_>),
}

/// Compiles the kernels for one instruction: `$V` and `$D`'s code with `$features` enabled.
macro_rules! kernels {
    ($static:ident, $name:literal, $isa:expr, $V:ty, $D:ty, [$($feature:tt),*]) => {
        static $static: PairKernels = {
            struct Compiled;

            impl PairLoops for Compiled {
                type V = $V;

                $(#[target_feature(enable = $feature)])*
                unsafe fn block(product: &mut Product<'_>, block: &Block, weights: Columns) {
                    // SAFETY: the caller guarantees these features.
                    unsafe { product.block::<$V, Pairs<$D>>(block, weights) }
                }

                $(#[target_feature(enable = $feature)])*
                unsafe fn one_row(
                    x: *const f32,
                    rows: [*const u8; TILE_COLS],
                    to_next: isize,
                    k: usize,
                ) -> [f32; TILE_COLS] {
                    // SAFETY: the caller guarantees these features.
                    unsafe { pairs::one_row::<$V, $D>(x, rows, to_next, k) }
                }
            }

            unsafe fn product(operands: Product<'_>) {
                // SAFETY: `available` returns this function only if the CPU has these features.
                unsafe { operands.run_pairs::<Compiled>() }
            }

            $(#[target_feature(enable = $feature)])*
            unsafe fn round_row(x: &[f32], row: usize, out: &SharedMut<'_, f32>) {
                // SAFETY: the caller guarantees the row and these features.
                unsafe { pairs::round_row(x, row, out) }
            }

            fn is_available() -> bool {
                true $(&& trail_base::cpu_has!($feature))*
            }

            PairKernels { name: $name, isa: $isa, is_available, round_row, product }
        };
    };
}

kernels!(PLAIN, "portable", Isa::Portable, Portable, PlainPairs, []);
#[cfg(target_arch = "x86_64")]
kernels!(
    AVX512_BF16,
    "avx512_bf16",
    Isa::Avx512,
    Avx512,
    Avx512Bf16,
    ["avx512f", "avx512bw", "avx512vl", "avx512bf16"]
);

/// All kernels, fastest first.
const ALL: &[&PairKernels] = &[
    #[cfg(target_arch = "x86_64")]
    &AVX512_BF16,
    &PLAIN,
];

impl PairKernels {
    /// All kernels of this architecture, fastest first.
    pub(crate) fn all() -> impl Iterator<Item = &'static PairKernels> {
        ALL.iter().copied()
    }

    /// The kernels that this CPU can run, in the same order.
    pub(crate) fn available() -> impl Iterator<Item = &'static PairKernels> {
        PairKernels::all().filter(|kernels| (kernels.is_available)())
    }

    /// The kernels with the registers of `isa` that are faster than f32 on this CPU, if there are
    /// any: `vdpbf16ps` has the rate of an f32 multiply-add on Zen 4, for twice the terms, and less
    /// than half of it on Intel's CPUs.
    pub(crate) fn fastest(isa: Isa) -> Option<&'static PairKernels> {
        let isa = isa.resolve().ok().filter(|isa| *isa == Isa::Avx512 && is_amd())?;
        PairKernels::available().find(|kernels| kernels.isa == isa)
    }

    /// Instruction set of the registers.
    #[cfg(test)]
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// See [`round_row`](pairs::round_row).
    ///
    /// # Safety
    ///
    /// No other thread may access the row during the call.
    pub(crate) unsafe fn round_row(&self, x: &[f32], row: usize, out: &SharedMut<'_, f32>) {
        // SAFETY: a reference to `PairKernels` exists only for what the CPU has: see `available`.
        // The caller guarantees the row.
        unsafe { (self.round_row)(x, row, out) }
    }

    /// See [`Product::run_pairs`].
    pub(crate) fn product(&self, operands: Product<'_>) {
        // SAFETY: a reference to `PairKernels` exists only for what the CPU has: see `available`.
        unsafe { (self.product)(operands) }
    }
}

/// True if AMD made this CPU.
fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    let vendor = {
        let leaf = std::arch::x86_64::__cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let vendor = [[0; 4]];
    vendor.as_flattened() == b"AuthenticAMD"
}
