//! Dispatch table of the products in 8 bits of one instruction.

use std::ops::Range;

use trail_platform::Isa;
#[cfg(target_arch = "x86_64")]
use trail_platform::simd::{Avx2, Avx512, Avx512VlVnni, Avx512Vnni, AvxVnni, Maddubs, Maddubs512};
#[cfg(target_arch = "aarch64")]
use trail_platform::simd::{Neon, NeonDotprod, NeonI8mm, NeonMull};
use trail_platform::simd::{PlainDot, Portable, Simd};

use super::byte_tile::{ByteTile, Scaling};
use super::q8::{self, Q8Block};
use super::q8_product::{Block, Q8Loops, Q8Product};
use super::unpack::Unpack;

/// Products in 8 bits by one instruction. A reference from [`select`](Self::select) proves that the
/// CPU has it.
pub struct Q8Kernels {
    /// Name of the instruction's extension.
    pub name: &'static str,
    /// Instruction set of the registers.
    isa: Isa,
    is_available: fn() -> bool,
    quantize_row: unsafe fn(&[f32], &mut [Q8Block]),
    product: unsafe fn(Q8Product<'_>),
}

/// Compiles the kernels for one instruction: `$V` and `$D`'s code with `$features` enabled, for few
/// rows of activations `$W` and `$E`'s, which has the same bits.
macro_rules! kernels {
    ($static:ident, $name:literal, $isa:expr, $V:ty, $D:ty, $parts:literal, $features:tt) => {
        kernels!($static, $name, $isa, $V, $D, $V, $D, $parts, $features);
    };
    (
        $static:ident, $name:literal, $isa:expr, $V:ty, $D:ty, $W:ty, $E:ty, $parts:literal,
        [$($feature:tt),*]
    ) => {
        static $static: Q8Kernels = {
            struct Compiled;

            impl Q8Loops for Compiled {
                const COLS: usize = 2 * <$V>::LANES;
                const FEW_ROWS_COLS: usize = 2 * <$W>::LANES;
                const PARTS: usize = $parts;

                $(#[target_feature(enable = $feature)])*
                unsafe fn columns<U: Unpack>(
                    product: &mut Q8Product<'_>,
                    col: usize,
                    tile: &mut ByteTile,
                ) {
                    // SAFETY: the caller guarantees these features.
                    unsafe { product.columns::<$V, Self, U>(col, tile) }
                }

                $(#[target_feature(enable = $feature)])*
                unsafe fn multiply<S: Scaling>(
                    product: &Q8Product<'_>,
                    block: &Block,
                    offset: i16,
                    out: *mut f32,
                ) {
                    // SAFETY: the caller guarantees these features.
                    unsafe { product.multiply::<$V, $D, S>(block, offset, out) }
                }

                $(#[target_feature(enable = $feature)])*
                unsafe fn few_rows<U: Unpack, const ROWS: usize>(
                    product: &mut Q8Product<'_>,
                    rows: Range<usize>,
                    col: usize,
                ) {
                    // SAFETY: the caller guarantees these features.
                    unsafe { product.few_rows::<$W, $E, U, ROWS>(rows, col) }
                }
            }

            unsafe fn product(operands: Q8Product<'_>) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { operands.run::<Compiled>() }
            }

            $(#[target_feature(enable = $feature)])*
            unsafe fn quantize_row(x: &[f32], out: &mut [Q8Block]) {
                q8::quantize_row(x, out);
            }

            fn is_available() -> bool {
                true $(&& trail_platform::cpu_has!($feature))*
            }

            Q8Kernels { name: $name, isa: $isa, is_available, quantize_row, product }
        };
    };
}

kernels!(PLAIN, "portable", Isa::Portable, Portable, PlainDot, 0, []);
#[cfg(target_arch = "x86_64")]
kernels!(MADDUBS, "avx2", Isa::Avx2, Avx2, Maddubs, 0, ["avx2", "fma", "f16c"]);
#[cfg(target_arch = "x86_64")]
kernels!(AVX_VNNI, "avx_vnni", Isa::Avx2, Avx2, AvxVnni, 1, ["avx2", "fma", "f16c", "avxvnni"]);
#[cfg(target_arch = "x86_64")]
kernels!(
    MADDUBS_512,
    "avx512bw",
    Isa::Avx512,
    Avx512,
    Maddubs512,
    0,
    ["avx512f", "avx512bw", "avx512vl"]
);
#[cfg(target_arch = "x86_64")]
kernels!(
    AVX512_VNNI,
    "avx512_vnni",
    Isa::Avx512,
    Avx512,
    Avx512Vnni,
    // Zen 4 takes two cycles for a shuffle of 512 bits, and one row is bound by shuffles.
    Avx2,
    Avx512VlVnni,
    2,
    ["avx512f", "avx512bw", "avx512vnni", "avx512vl", "avx2", "fma", "f16c"]
);
#[cfg(target_arch = "aarch64")]
kernels!(NEON, "neon", Isa::Neon, Neon, NeonMull, 0, ["neon"]);
#[cfg(target_arch = "aarch64")]
kernels!(NEON_DOTPROD, "dotprod", Isa::Neon, Neon, NeonDotprod, 1, ["neon", "dotprod"]);
#[cfg(target_arch = "aarch64")]
kernels!(NEON_I8MM, "i8mm", Isa::Neon, Neon, NeonI8mm, 1, ["neon", "i8mm"]);

/// All kernels; those of one instruction set fastest first.
const ALL: &[&Q8Kernels] = &[
    #[cfg(target_arch = "x86_64")]
    &AVX512_VNNI,
    #[cfg(target_arch = "x86_64")]
    &MADDUBS_512,
    #[cfg(target_arch = "x86_64")]
    &AVX_VNNI,
    #[cfg(target_arch = "x86_64")]
    &MADDUBS,
    #[cfg(target_arch = "aarch64")]
    &NEON_I8MM,
    #[cfg(target_arch = "aarch64")]
    &NEON_DOTPROD,
    #[cfg(target_arch = "aarch64")]
    &NEON,
    &PLAIN,
];

impl Q8Kernels {
    /// All kernels of this architecture, those of one instruction set fastest first.
    pub fn all() -> impl Iterator<Item = &'static Q8Kernels> {
        ALL.iter().copied()
    }

    /// The kernels that this CPU can run, in the same order.
    pub fn available() -> impl Iterator<Item = &'static Q8Kernels> {
        Q8Kernels::all().filter(|kernels| (kernels.is_available)())
    }

    /// The fastest kernels with the registers of `isa`, or an error if this CPU does not have it.
    pub fn select(isa: Isa) -> Result<&'static Q8Kernels, String> {
        let isa = isa.resolve()?;
        let missing = || format!("this CPU has no {isa}");
        Q8Kernels::available().find(|kernels| kernels.isa == isa).ok_or_else(missing)
    }

    /// Instruction set of the registers.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Quantizes a row of activations; see [`Q8Block`].
    pub fn quantize_row(&self, x: &[f32], out: &mut [Q8Block]) {
        // SAFETY: a reference to `Q8Kernels` exists only for what the CPU has: see `available`.
        unsafe { (self.quantize_row)(x, out) }
    }

    /// See [`Q8Product`].
    pub fn product(&self, operands: Q8Product<'_>) {
        // SAFETY: a reference to `Q8Kernels` exists only for what the CPU has: see `available`.
        unsafe { (self.product)(operands) }
    }
}
