//! Matrix product of all rows of a batch with a weight matrix, split into work items.

use std::ops::Range;

use crate::model::Tensor;

use super::Pool;
use super::buffers::{ROW_BLOCK, WorkerScratch, item_cols};
use super::kernels::{Kernels, Packing, Product};
use super::shared::SharedMut;
use crate::backend::TapReceiver;

/// `x . weights^T`.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    pub(super) kernels: &'static Kernels,
    /// Packed `[rows][weights.cols]`.
    pub(super) x: &'a [f32],
    pub(super) packing: Packing,
    pub(super) rows: usize,
    /// `[out, in]`
    pub(super) weights: &'a Tensor,
}

impl Linear<'_> {
    /// Splits the rows into blocks of at most `ROW_BLOCK`.
    pub(super) fn row_blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.rows;
        (0..rows).step_by(ROW_BLOCK).map(move |first| first..rows.min(first + ROW_BLOCK))
    }

    /// Computes outputs `cols` of the rows in `block` into `tile` `[block][cols]`.
    pub(super) fn product(&self, block: &Range<usize>, cols: &Range<usize>, tile: &mut [f32]) {
        let Tensor { dtype, cols: k, .. } = *self.weights;
        self.kernels.product(Product {
            x: &self.x[block.start * Packing::stride(k)..],
            packing: self.packing,
            rows: block.len(),
            weights: &self.weights.bytes()[cols.start * self.weights.row_len()..],
            dtype,
            cols: cols.len(),
            k,
            out: tile,
        });
    }

    /// Computes all outputs in one parallel region, and passes them to `put(row, cols, values)`.
    pub(super) fn for_each_tile(
        &self,
        pool: &mut Pool,
        scratch: &mut [WorkerScratch],
        side: Option<&dyn TapReceiver>,
        put: impl Fn(usize, Range<usize>, &[f32]) + Sync,
    ) {
        let step = item_cols(self.weights.rows, pool.num_workers());
        let scratch = SharedMut::new(scratch);
        pool.for_each(self.weights.rows.div_ceil(step), assist(side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`.
            let tile = unsafe { &mut scratch.part(worker..worker + 1)[0].tile };
            let cols = item * step..self.weights.rows.min((item + 1) * step);
            for block in self.row_blocks() {
                self.product(&block, &cols, tile);
                for (row, values) in block.zip(tile.chunks_exact(cols.len())) {
                    put(row, cols.clone(), values);
                }
            }
        });
    }
}

/// Returns the work of a worker that has no item left: one side task per call.
pub(super) fn assist(side: Option<&dyn TapReceiver>) -> impl Fn() -> bool + Sync {
    move || side.is_some_and(|receiver| receiver.assist())
}
