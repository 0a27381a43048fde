//! The second of an adapter's two thin products: `out[n] += sum over j of x[j] * b[j][n]`.
//!
//! Its dot products are as short as the adapter's rank, so that the sums over lanes of
//! [`Product`](super::Product) would take longer than the products. B is stored transposed instead,
//! and a lane is an output: the sum of each runs over j in ascending order, whatever the part of
//! the outputs that a call computes.

use crate::Dtype;
use trail_platform::simd::{MAX_LANES, Simd};

use super::stored::{Bf16, F16, F32, Float};

/// Registers of sums of a block: enough that the additions do not wait for each other.
const BLOCK: usize = 4;

/// Operands of one row.
pub struct Expand<'a> {
    /// The adapter's inner values `[rank]`.
    pub x: &'a [f32],
    /// B transposed, row-major: `[rank][len]` of `dtype`.
    pub weights: &'a [u8],
    /// F32, F16 or Bf16.
    pub dtype: Dtype,
    /// Outputs of the projection.
    pub len: usize,
    /// The first output of `out`.
    pub first: usize,
    /// Outputs `first..` of a row, to which the sums are added.
    pub out: &'a mut [f32],
}

impl Expand<'_> {
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    pub(super) unsafe fn run<V: Simd>(self) {
        let Expand { x, weights, dtype, len, first, ref out } = self;
        assert!(first + out.len() <= len);
        assert!(!dtype.is_quantized() && weights.len() >= dtype.bytes_of(x.len() * len));
        // SAFETY: the caller guarantees `V`'s instructions.
        unsafe {
            match dtype {
                Dtype::F32 => self.add::<V, F32>(),
                Dtype::F16 => self.add::<V, F16>(),
                _ => self.add::<V, Bf16>(),
            }
        }
    }

    /// # Safety
    ///
    /// As [`run`](Self::run); the lengths are checked.
    #[inline(always)]
    unsafe fn add<V: Simd, T: Float>(self) {
        let Expand { x, weights, len, first, out, .. } = self;
        let offset = |j: usize, at: usize| T::DTYPE.bytes_of(j * len + first + at);
        let mut at = 0;
        while at + BLOCK * V::LANES <= out.len() {
            // SAFETY: outputs `at..at + BLOCK * LANES` are within each row of weights and `out`.
            unsafe {
                let mut sums = [V::splat(0.0); BLOCK];
                for (j, &x) in x.iter().enumerate() {
                    let row = weights.as_ptr().add(offset(j, at));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let weights = T::first::<V>(row.add(T::DTYPE.bytes_of(i * V::LANES)));
                        *sum = V::splat(x).mul_add(weights, *sum);
                    }
                }
                for (i, sum) in sums.into_iter().enumerate() {
                    let out = out.as_mut_ptr().add(at + i * V::LANES);
                    V::load(out).add(sum).store(out);
                }
            }
            at += BLOCK * V::LANES;
        }
        let bytes = T::DTYPE.bytes_of(V::LANES);
        for (i, out) in out[at..].chunks_mut(V::LANES).enumerate() {
            let mut values = [0.0; MAX_LANES];
            // SAFETY: a register is read from a row that has it, or from a copy; `values` has one.
            unsafe {
                let mut sum = V::splat(0.0);
                for (j, &x) in x.iter().enumerate() {
                    let row = &weights[offset(j, at + i * V::LANES)..];
                    let mut copy = [0; 4 * MAX_LANES];
                    let row = if row.len() < bytes {
                        copy[..row.len()].copy_from_slice(row);
                        &copy
                    } else {
                        row
                    };
                    sum = V::splat(x).mul_add(T::first::<V>(row.as_ptr()), sum);
                }
                sum.store(values.as_mut_ptr());
            }
            out.iter_mut().zip(values).for_each(|(out, value)| *out += value);
        }
    }
}
