//! Dispatch table of the kernels of one instruction set.

use crate::Activation;
use trail_platform::Isa;
#[cfg(target_arch = "aarch64")]
use trail_platform::simd::Neon;
#[cfg(target_arch = "x86_64")]
use trail_platform::simd::{Avx2, Avx512};
use trail_platform::simd::{Portable, Simd};

use super::product::{Block, Loops, WideTile};
use super::stored::{Stored, TILE_COLS, Widen};
use super::tile::Columns;
use super::{Attention, DeltaRule, Expand, Packing, Product};

/// Kernels of one instruction set. A value of this type proves that the CPU has it.
pub struct Kernels {
    /// The instruction set; never `Auto`.
    pub isa: Isa,
    /// f32 lanes of a register.
    pub lanes: usize,
    product: unsafe fn(Product<'_>),
    expand: unsafe fn(Expand<'_>),
    rms_norm: unsafe fn(&[f32], &[f32], f32, Packing, &mut [f32]),
    rms_scale: unsafe fn(&[f32], f32) -> f32,
    swiglu: unsafe fn(&mut [f32], &[f32]),
    geglu: unsafe fn(&mut [f32], &[f32]),
    swiglu_oai: unsafe fn(&mut [f32], &[f32]),
    attention: unsafe fn(Attention<'_>),
    delta_rule: unsafe fn(DeltaRule<'_>),
}

/// Compiles the kernels for one instruction set: `$V`'s code with `$features` enabled.
macro_rules! kernels {
    ($name:ident, $isa:expr, $V:ty $(, $features:literal)?) => {
        static $name: Kernels = {
            struct Compiled;

            impl Loops for Compiled {
                type V = $V;

                $(#[target_feature(enable = $features)])?
                unsafe fn block<S: Stored<$V>>(
                    product: &mut Product<'_>,
                    block: &Block,
                    weights: Columns,
                ) {
                    // SAFETY: the caller guarantees these features.
                    unsafe { product.block::<$V, S>(block, weights) }
                }

                $(#[target_feature(enable = $features)])?
                unsafe fn fill<S: Widen<$V>>(
                    wide: &mut WideTile,
                    rows: [*const u8; TILE_COLS],
                    to_next: isize,
                    k_len: usize,
                ) -> Columns {
                    // SAFETY: the caller guarantees these features.
                    unsafe { wide.fill::<$V, S>(rows, to_next, k_len) }
                }
            }

            unsafe fn product(operands: Product<'_>) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { operands.run::<Compiled>() }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn expand(operands: Expand<'_>) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { operands.run::<$V>() }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(x: &[f32], w: &[f32], eps: f32, packing: Packing, out: &mut [f32]) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { super::norm::rms_norm::<$V>(x, w, eps, packing, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rms_scale(x: &[f32], eps: f32) -> f32 {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { super::norm::rms_scale::<$V>(x, eps) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu(gate: &mut [f32], up: &[f32]) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { super::glu::swiglu::<$V>(gate, up) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn geglu(gate: &mut [f32], up: &[f32]) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { super::glu::geglu::<$V>(gate, up) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu_oai(gate: &mut [f32], up: &[f32]) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { super::glu::swiglu_oai::<$V>(gate, up) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn attention(operands: Attention<'_>) {
                // SAFETY: `select` returns this function only if the CPU has these features.
                unsafe { operands.run::<$V>() }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn delta_rule(operands: DeltaRule<'_>) {
                operands.run();
            }

            Kernels {
                isa: $isa,
                lanes: <$V>::LANES,
                product,
                expand,
                rms_norm,
                rms_scale,
                swiglu,
                geglu,
                swiglu_oai,
                attention,
                delta_rule,
            }
        };
    };
}

kernels!(PORTABLE, Isa::Portable, Portable);
#[cfg(target_arch = "x86_64")]
kernels!(AVX2, Isa::Avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(AVX512, Isa::Avx512, Avx512, "avx512f,avx512bw,avx512vl");
#[cfg(target_arch = "aarch64")]
kernels!(NEON, Isa::Neon, Neon, "neon");

impl Kernels {
    /// Returns the kernels of `isa`, or an error if this CPU does not have it.
    pub fn select(isa: Isa) -> Result<&'static Kernels, String> {
        Ok(match isa.resolve()? {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &AVX512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &NEON,
            _ => &PORTABLE,
        })
    }

    /// See [`Product`].
    pub fn product(&self, operands: Product<'_>) {
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { (self.product)(operands) }
    }

    /// See [`Expand`].
    pub fn expand(&self, operands: Expand<'_>) {
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { (self.expand)(operands) }
    }

    /// `out = x / sqrt(mean(x^2) + eps) * weight`, packed. `x` and `weight` are `[hidden]`, `out`
    /// is `[Packing::stride(hidden)]`; its padding is zeroed.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, packing: Packing, out: &mut [f32]) {
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { (self.rms_norm)(x, weight, eps, packing, out) }
    }

    /// `1 / sqrt(mean(x^2) + eps)`
    pub fn rms_scale(&self, x: &[f32], eps: f32) -> f32 {
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { (self.rms_scale)(x, eps) }
    }

    /// `gate = activation(gate) * up`, element by element. The lengths are equal multiples of
    /// `MAX_LANES`.
    pub fn gate(&self, activation: Activation, gate: &mut [f32], up: &[f32]) {
        let kernel = match activation {
            Activation::Silu => self.swiglu,
            Activation::GeluTanh => self.geglu,
            Activation::SwigluOai => self.swiglu_oai,
        };
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { kernel(gate, up) }
    }

    /// See [`Attention`].
    pub fn attention(&self, operands: Attention<'_>) {
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { (self.attention)(operands) }
    }

    /// See [`DeltaRule`].
    pub fn delta_rule(&self, operands: DeltaRule<'_>) {
        // SAFETY: a `Kernels` exists only for instructions that the CPU has: see `select`.
        unsafe { (self.delta_rule)(operands) }
    }
}
