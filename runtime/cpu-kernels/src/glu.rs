//! SwiGLU and GeGLU, and the exponential that they share with attention's softmax.

use trail_platform::simd::{Portable, Simd};

/// Limit of gpt-oss's SwiGLU.
pub const SWIGLU_LIMIT: f32 = 7.0;
/// Factor of the sigmoid's argument in gpt-oss's SwiGLU.
pub const SWIGLU_ALPHA: f32 = 1.702;

/// `gate = gate * sigmoid(gate) * up`, element by element. The lengths are equal multiples of
/// `MAX_LANES`.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn swiglu<V: Simd>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    assert!(gate.len().is_multiple_of(V::LANES));
    for (gate, up) in gate.chunks_exact_mut(V::LANES).zip(up.chunks_exact(V::LANES)) {
        // SAFETY: a chunk has LANES floats; the caller guarantees `V`'s instructions.
        unsafe {
            let g = V::load(gate.as_ptr());
            let denominator = V::splat(1.0).add(exp(V::splat(0.0).sub(g)));
            g.div(denominator).mul(V::load(up.as_ptr())).store(gate.as_mut_ptr());
        }
    }
}

/// `gate = gate * sigmoid(1.702 gate) * (up + 1)`, element by element, with `gate` at most
/// [`SWIGLU_LIMIT`] and `up` no further than it from 0. The lengths are equal multiples of
/// `MAX_LANES`.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn swiglu_oai<V: Simd>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    assert!(gate.len().is_multiple_of(V::LANES));
    for (gate, up) in gate.chunks_exact_mut(V::LANES).zip(up.chunks_exact(V::LANES)) {
        // SAFETY: a chunk has LANES floats; the caller guarantees `V`'s instructions.
        unsafe {
            let limit = V::splat(SWIGLU_LIMIT);
            let g = V::load(gate.as_ptr()).min(limit);
            let up = V::load(up.as_ptr()).min(limit).max(V::splat(-SWIGLU_LIMIT));
            let denominator = V::splat(1.0).add(exp(g.mul(V::splat(-SWIGLU_ALPHA))));
            g.div(denominator).mul(up.add(V::splat(1.0))).store(gate.as_mut_ptr());
        }
    }
}

/// `gate = gelu(gate) * up` with GELU's tanh form, element by element. The lengths are equal
/// multiples of `MAX_LANES`.
///
/// `0.5 x (1 + tanh u) = x sigmoid(2 u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`: SwiGLU with
/// another exponent, and without the cancellation of `1 + tanh u` at negative x.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn geglu<V: Simd>(gate: &mut [f32], up: &[f32]) {
    /// -2 sqrt(2 / pi), and the same times 0.044715.
    const LINEAR: f32 = -1.595_769_2;
    const CUBIC: f32 = -0.071_354_814;
    assert_eq!(gate.len(), up.len());
    assert!(gate.len().is_multiple_of(V::LANES));
    for (gate, up) in gate.chunks_exact_mut(V::LANES).zip(up.chunks_exact(V::LANES)) {
        // SAFETY: a chunk has LANES floats; the caller guarantees `V`'s instructions.
        unsafe {
            let g = V::load(gate.as_ptr());
            let exponent = g.mul(g).mul_add(V::splat(CUBIC), V::splat(LINEAR)).mul(g);
            let denominator = V::splat(1.0).add(exp(exponent));
            g.div(denominator).mul(V::load(up.as_ptr())).store(gate.as_mut_ptr());
        }
    }
}

/// e^x to about 2 units in the last place; x is clamped to where the result is a normal f32.
///
/// `e^x` of a scalar, with the same bits on every CPU.
pub(super) fn scalar_exp(x: f32) -> f32 {
    // SAFETY: plain Rust runs on any CPU.
    unsafe { exp(Portable::splat(x)).max_lane() }
}

/// Cephes' `expf`: x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial of degree 6 for e^r. The
/// standard library's `exp` is not used because every thread and code path must produce the same
/// bits.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn exp<V: Simd>(x: V) -> V {
    /// Adding this constant rounds to an integer, which is then in the lowest bits of the sum.
    const BIAS: f32 = 12_582_912.0; // 1.5 * 2^23
    // ln 2 in two parts, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // SAFETY: the caller guarantees `V`'s instructions. (A closure would not be compiled with
    // them.)
    unsafe {
        let bias = V::splat(BIAS);
        let x = x.max(V::splat(-87.0)).min(V::splat(88.0));
        let biased = x.mul_add(V::splat(std::f32::consts::LOG2_E), bias);
        let n = biased.sub(bias);
        let r = n.mul_add(V::splat(-LN2_HIGH), x);
        let r = n.mul_add(V::splat(-LN2_LOW), r);
        let mut polynomial = V::splat(COEFFICIENTS[0]);
        for &c in &COEFFICIENTS[1..] {
            polynomial = polynomial.mul_add(r, V::splat(c));
        }
        let e_r = polynomial.mul_add(r.mul(r), r.add(V::splat(1.0)));
        e_r.mul(biased.pow2_of_biased())
    }
}
