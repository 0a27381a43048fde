//! Dispatch table of the products of pairs of bf16 of one instruction.

use trail_platform::Isa;
#[cfg(target_arch = "x86_64")]
use trail_platform::simd::{Avx512, Avx512Bf16};
use trail_platform::simd::{PlainPairs, Portable};

use super::Product;
use super::pairs::{self, PairLoops, Pairs};
use super::product::Block;
use super::stored::TILE_COLS;
use super::tile::Columns;

/// Products of pairs by one instruction. A reference proves that the CPU has it.
pub struct PairKernels {
    /// Name of the instruction's extension.
    pub name: &'static str,
    /// Instruction set of the registers.
    isa: Isa,
    is_available: fn() -> bool,
    round_row: unsafe fn(&[f32], &mut [f32]),
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
            unsafe fn round_row(x: &[f32], out: &mut [f32]) {
                pairs::round_row(x, out);
            }

            fn is_available() -> bool {
                true $(&& trail_platform::cpu_has!($feature))*
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
    pub fn all() -> impl Iterator<Item = &'static PairKernels> {
        ALL.iter().copied()
    }

    /// The kernels that this CPU can run, in the same order.
    pub fn available() -> impl Iterator<Item = &'static PairKernels> {
        PairKernels::all().filter(|kernels| (kernels.is_available)())
    }

    /// The kernels with the registers of `isa` that are faster than f32 on this CPU, if there are
    /// any: `vdpbf16ps` has the rate of an f32 multiply-add on Zen 4, for twice the terms, and less
    /// than half of it on Intel's CPUs.
    pub fn fastest(isa: Isa) -> Option<&'static PairKernels> {
        let isa = isa.resolve().ok().filter(|isa| *isa == Isa::Avx512 && is_amd())?;
        PairKernels::available().find(|kernels| kernels.isa == isa)
    }

    /// Instruction set of the registers.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Rounds a row of activations to bf16, to the nearest and to even, and clears the rest of
    /// `out`, of [`Packing::stride`](super::Packing::stride) pairs.
    pub fn round_row(&self, x: &[f32], out: &mut [f32]) {
        // SAFETY: a reference to `PairKernels` exists only for what the CPU has: see `available`.
        unsafe { (self.round_row)(x, out) }
    }

    /// The product of pairs: `k` is their number, and `dtype` is f32, whose size they have.
    pub fn product(&self, operands: Product<'_>) {
        // SAFETY: a reference to `PairKernels` exists only for what the CPU has: see `available`.
        unsafe { (self.product)(operands) }
    }
}

/// True if AMD made this CPU.
fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    let vendor = {
        // A safe function for later compilers than the oldest that this is for.
        #[allow(unused_unsafe)]
        // SAFETY: every CPU of x86-64 has the instruction.
        let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let vendor = [[0; 4]];
    vendor.as_flattened() == b"AuthenticAMD"
}
