//! Matrix product of all rows of a batch with a weight matrix, split into work items.

use std::ops::Range;

use crate::model::{Dtype, Tensor};

use super::Pool;
use super::adapted::Delta;
use super::buffers::{ROW_BLOCK, WorkerScratch, item_cols, q8_item_cols};
use super::narrow::{Narrow, NarrowKernel};
use crate::backend::HiddenSink;
use trail_cpu_kernels::SharedMut;
use trail_cpu_kernels::{Kernels, Packing, Product, Q8Product, pairs_of};

/// `x . weights^T`.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    pub(super) kernels: &'static Kernels,
    /// Packed `[rows][weights.cols]`.
    pub(super) x: &'a [f32],
    pub(super) packing: Packing,
    /// `x` in the narrow types that weights need.
    pub(super) narrow: &'a Narrow,
    /// First row of `x`.
    pub(super) first: usize,
    /// Number of rows.
    pub(super) rows: usize,
    /// `[out, in]`
    pub(super) weights: &'a Tensor,
    /// The adapters' part; `None` without adapters.
    pub(super) delta: Option<Delta<'a>>,
}

impl Linear<'_> {
    /// Splits the rows into blocks of at most `ROW_BLOCK`.
    pub(super) fn row_blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (first, end) = (self.first, self.first + self.rows);
        (first..end).step_by(ROW_BLOCK).map(move |first| first..end.min(first + ROW_BLOCK))
    }

    /// Computes outputs `cols` of the rows in `block` into `tile` `[block][cols]`. Each of
    /// `workers` threads takes an item of as many outputs in turn.
    pub(super) fn product(
        &self,
        block: &Range<usize>,
        cols: &Range<usize>,
        workers: usize,
        tile: &mut [f32],
    ) {
        self.own_product(block, cols, workers, tile);
        if let Some(delta) = &self.delta {
            delta.add(self.kernels, block, cols, tile);
        }
    }

    /// The same without adapters.
    fn own_product(
        &self,
        block: &Range<usize>,
        cols: &Range<usize>,
        workers: usize,
        tile: &mut [f32],
    ) {
        let Tensor { dtype, cols: k, .. } = *self.weights;
        let row_bytes = self.weights.row_len();
        let weights = &self.weights.bytes()[cols.start * row_bytes..];
        let next = workers * cols.len() * row_bytes;
        let (first, rows, cols, out) = (block.start, block.len(), cols.len(), tile);
        match self.narrow.kernels.of(self.weights) {
            None => {
                let (x, packing) = (&self.x[first * Packing::stride(k)..], self.packing);
                let product = Product { x, packing, rows, weights, dtype, cols, k, next, out };
                self.kernels.product(product);
            }
            Some(NarrowKernel::Q8(kernels)) => {
                let x = self.narrow.q8(first, k);
                let interleaved = self.weights.is_interleaved();
                kernels.product(Q8Product {
                    x,
                    rows,
                    weights,
                    interleaved,
                    dtype,
                    cols,
                    k,
                    next,
                    out,
                });
            }
            Some(NarrowKernel::Pairs(kernels)) => {
                let (x, packing) = (self.narrow.pairs(first, k), Packing::NATURAL);
                // A pair has the size of an f32.
                let (dtype, k) = (Dtype::F32, pairs_of(k));
                kernels.product(Product { x, packing, rows, weights, dtype, cols, k, next, out });
            }
        }
    }

    /// Number of outputs in a work item, of `groups` matrices of equal shape in one region.
    pub(super) fn item_cols(&self, num_workers: usize, groups: usize) -> usize {
        let cols = self.weights.rows * groups;
        if let Some(NarrowKernel::Q8(_)) = self.narrow.kernels.of(self.weights) {
            q8_item_cols(cols, self.weights.row_len(), self.rows, num_workers)
        } else {
            item_cols(cols, num_workers)
        }
    }

    /// Computes all outputs in one parallel region, and passes them to `put(row, cols, values)`.
    pub(super) fn for_each_tile(
        &self,
        pool: &mut Pool,
        scratch: &mut [WorkerScratch],
        side: Option<&dyn HiddenSink>,
        put: impl Fn(usize, Range<usize>, &[f32]) + Sync,
    ) {
        let step = self.item_cols(pool.num_workers(), 1);
        let scratch = SharedMut::new(scratch);
        let workers = pool.num_workers();
        pool.for_each(self.weights.rows.div_ceil(step), assist(side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`.
            let tile = unsafe { &mut scratch.part(worker..worker + 1)[0].tile };
            let cols = item * step..self.weights.rows.min((item + 1) * step);
            for block in self.row_blocks() {
                self.product(&block, &cols, workers, tile);
                for (row, values) in block.zip(tile.chunks_exact(cols.len())) {
                    put(row, cols.clone(), values);
                }
            }
        });
    }
}

/// Multiplies rows of one number with several matrices in one parallel region, and writes the
/// outputs of all to each row of `out` one after another: `[rows][matrices][weights.rows]`.
pub(super) fn side_by_side<const N: usize>(
    matrices: &[Linear<'_>; N],
    pool: &mut Pool,
    scratch: &mut [WorkerScratch],
    side: Option<&dyn HiddenSink>,
    out: &mut [f32],
) {
    let workers = pool.num_workers();
    let stride: usize = matrices.iter().map(|linear| linear.weights.rows).sum();
    let steps = matrices.each_ref().map(|linear| linear.item_cols(workers, 1));
    let items = |at: usize| matrices[at].weights.rows.div_ceil(steps[at]);
    let (out, scratch) = (SharedMut::new(out), SharedMut::new(scratch));
    pool.for_each((0..N).map(items).sum(), assist(side), |worker, item| {
        // SAFETY: each worker accesses only its own element of `scratch`.
        let tile = unsafe { &mut scratch.part(worker..worker + 1)[0].tile };
        let (mut at, mut item, mut first) = (0, item, 0);
        while item >= items(at) {
            item -= items(at);
            first += matrices[at].weights.rows;
            at += 1;
        }
        let (linear, step) = (&matrices[at], steps[at]);
        let cols = item * step..linear.weights.rows.min((item + 1) * step);
        for block in linear.row_blocks() {
            linear.product(&block, &cols, workers, tile);
            for (row, values) in block.zip(tile.chunks_exact(cols.len())) {
                let to = row * stride + first + cols.start;
                // SAFETY: only this item writes these outputs of this matrix.
                unsafe { out.part(to..to + cols.len()) }.copy_from_slice(values);
            }
        }
    });
}

/// Returns the work of a worker that has no item left: one side task per call.
pub(super) fn assist(side: Option<&dyn HiddenSink>) -> impl Fn() -> bool + Sync {
    move || side.is_some_and(|receiver| receiver.assist())
}
