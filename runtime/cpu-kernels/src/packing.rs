//! Storage order of activations for the product kernel.

use crate::Dtype;
use crate::shared::SharedMut;
use trail_platform::simd::MAX_LANES;

/// Storage order of a row of activations.
///
/// The kernel reads `2 * lanes` weights per step into two registers. With bf16 weights the first
/// register holds the even indices and the second the odd ones, because splitting by parity needs
/// no shuffle; so activations for bf16 weights alone are stored evens first within each step. Other
/// dtypes are read in natural order, and so is bf16 beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    lanes: usize,
    by_parity: bool,
}

impl Packing {
    /// Natural order.
    pub const NATURAL: Packing = Packing { lanes: MAX_LANES, by_parity: false };

    /// Order of activations that are multiplied with weights of all `dtypes`, with registers of
    /// `lanes`.
    pub fn new(dtypes: impl IntoIterator<Item = Dtype>, lanes: usize) -> Self {
        Packing { lanes, by_parity: dtypes.into_iter().all(|dtype| dtype == Dtype::Bf16) }
    }

    /// Distance between packed rows of `len` values, floats: a multiple of the widest step.
    pub fn stride(len: usize) -> usize {
        2 * MAX_LANES * (len.div_ceil(2 * MAX_LANES) | 1)
    }

    /// Writes `values` to logical indices `first..` of the packed row that begins at `row` of
    /// `out`.
    ///
    /// # Safety
    ///
    /// No other thread may access these elements during the call.
    pub unsafe fn scatter(
        self,
        out: &SharedMut<'_, f32>,
        row: usize,
        first: usize,
        values: &[f32],
    ) {
        for (k, &value) in (first..).zip(values) {
            // SAFETY: the caller guarantees exclusive access to these elements.
            unsafe { out.write(row + self.index(k), value) };
        }
    }

    /// Clears the step of each row that ends beyond `len`, if any: another order may have
    /// stored values in its padding.
    pub fn clear_padding(self, out: &mut [f32], rows: usize, len: usize) {
        let whole = len - len % (2 * self.lanes);
        if whole == len {
            return;
        }
        for row in out.chunks_exact_mut(Self::stride(len)).take(rows) {
            row[whole..].fill(0.0);
        }
    }

    /// True if each step stores its even indices before its odd ones.
    pub fn by_parity(self) -> bool {
        self.by_parity
    }

    /// Stored index of value `k` of a row.
    #[inline(always)]
    pub fn index(self, k: usize) -> usize {
        if self.by_parity {
            // `lanes` is a power of two, which the compiler does not know: `%` would be a division.
            let within = k & (2 * self.lanes - 1);
            k - within + (within & 1) * self.lanes + within / 2
        } else {
            k
        }
    }
}
