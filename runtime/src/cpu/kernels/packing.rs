//! The order in which a row of activations is stored for the product kernel.

use crate::cpu::shared::SharedMut;
use crate::cpu::simd::MAX_LANES;
use crate::model::Dtype;

/// The kernel takes `2 * lanes` weights a step, in two registers. Of bf16 weights the first register
/// holds the even places and the second the odd ones, because splitting by parity costs no
/// shuffle; so activations that meet bf16 weights are stored evens first within each step. Other
/// dtypes are read in natural order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    lanes: usize,
    by_parity: bool,
}

impl Packing {
    /// The order for weights of `dtype` and registers of `lanes`.
    pub(crate) fn new(dtype: Dtype, lanes: usize) -> Self {
        Packing { lanes, by_parity: dtype == Dtype::Bf16 }
    }

    /// Floats from one packed row of `len` values to the next: whole steps of the widest registers.
    pub(crate) fn stride(len: usize) -> usize {
        2 * MAX_LANES * (len.div_ceil(2 * MAX_LANES) | 1)
    }

    /// Writes `values` to places `first..` of the packed row that begins at `row` of `out`.
    ///
    /// # Safety
    ///
    /// Nobody else may access these places meanwhile.
    pub(crate) unsafe fn scatter(
        self,
        out: &SharedMut<'_, f32>,
        row: usize,
        first: usize,
        values: &[f32],
    ) {
        for (k, &value) in (first..).zip(values) {
            // SAFETY: the caller's.
            unsafe { out.write(row + self.index(k), value) };
        }
    }

    /// Whether each step's even places come before its odd ones.
    pub(crate) fn by_parity(self) -> bool {
        self.by_parity
    }

    /// Where value `k` of a row lies.
    #[inline(always)]
    pub(crate) fn index(self, k: usize) -> usize {
        if self.by_parity {
            // `lanes` is a power of two; the compiler does not know, and would divide.
            let within = k & (2 * self.lanes - 1);
            k - within + (within & 1) * self.lanes + within / 2
        } else {
            k
        }
    }
}
