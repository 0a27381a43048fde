//! RMSNorm: of one row, stored in the packed order of the product that reads it, and the factor of
//! rows that stay where they are.

use trail_platform::simd::Simd;

use super::Packing;

/// `out = x / sqrt(mean(x^2) + eps) * weight`, packed.
///
/// `x` and `weight` are `[hidden]`, `out` is `[Packing::stride(hidden)]`; its padding is zeroed.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn rms_norm<V: Simd>(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    packing: Packing,
    out: &mut [f32],
) {
    assert_eq!(x.len(), weight.len());
    // SAFETY: the caller guarantees `V`'s instructions.
    let scale = unsafe { rms_scale::<V>(x, eps) };
    let step = 2 * V::LANES;
    let whole = x.len() - x.len() % step;
    for at in (0..whole).step_by(step) {
        let (x, weight) = (&x[at..at + step], &weight[at..at + step]);
        let out = &mut out[at..at + step];
        // A constant trip count and constant indices, so that it compiles to shuffles.
        for i in 0..V::LANES {
            let (a, b) = if packing.by_parity() { (2 * i, 2 * i + 1) } else { (i, i + V::LANES) };
            out[i] = x[a] * scale * weight[a];
            out[i + V::LANES] = x[b] * scale * weight[b];
        }
    }
    out[whole..Packing::stride(x.len())].fill(0.0);
    for k in whole..x.len() {
        out[packing.index(k)] = x[k] * scale * weight[k];
    }
}

/// `1 / sqrt(mean(x^2) + eps)`
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn rms_scale<V: Simd>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: the caller guarantees `V`'s instructions.
    let mean = unsafe { sum_of_squares::<V>(x) } / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// # Safety
///
/// The CPU must have `V`'s instructions.
#[inline(always)]
unsafe fn sum_of_squares<V: Simd>(x: &[f32]) -> f32 {
    let mut chunks = x.chunks_exact(4 * V::LANES);
    // SAFETY: a chunk has 4 * LANES floats; the caller guarantees `V`'s instructions.
    let sums = unsafe {
        let mut sums = [V::splat(0.0); 4];
        for chunk in &mut chunks {
            for (i, sum) in sums.iter_mut().enumerate() {
                let x = V::load(chunk.as_ptr().add(i * V::LANES));
                *sum = x.mul_add(x, *sum);
            }
        }
        V::sum4(sums)
    };
    let rest: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    sums.iter().sum::<f32>() + rest
}
