//! Rows whose requests have an adapter: the two thin products beside those of the model.
//!
//! The rows of an adapter are multiplied with A together, in a region before that of the projection
//! ([`Regions::shrink`]). The projection's own work items then add the product with B to the
//! outputs that they computed ([`Delta::add`]). Both sum in an order that depends on neither the
//! other rows nor the number of threads, and rows without an adapter are left as they are.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::Batch;
use crate::model::adapter::MAX_RANK;
use crate::model::{Adapter, LowRank, Projection};

use super::buffers::{MAX_ITEM_COLS, WorkerScratch, item_cols};
use super::linear::assist;
use super::regions::{Regions, Source};
use trail_cpu_kernels::{Aligned, Expand, Kernels, Packing, Product, SharedMut};

/// Most rows of a work item: with [`MAX_ITEM_COLS`] rows of A they stay in a core's L2.
pub(super) const PIECE_ROWS: usize = 32;
/// Projections of one input: q, k and v.
const INPUT_PROJECTIONS: usize = 3;
/// Multiplications below which a region is computed by one thread, as they take no longer than a
/// fork and join.
const PARALLEL_PRODUCTS: usize = 128 * 1024;
/// In `adapter_of`: none.
const NONE: u32 = u32::MAX;

/// The rows of a step by their adapters, and the values between the two products.
pub(super) struct Adapted {
    /// The rows with an adapter, those of one adapter together and ascending.
    order: Vec<u32>,
    /// The rows of each adapter, in parts.
    pieces: Vec<Piece>,
    /// Index of each row's adapter in the batch `[rows]`; empty without adapters.
    adapter_of: Vec<u32>,
    /// Scaled products with A `[rows][INPUT_PROJECTIONS][MAX_RANK]`. Takes memory when it is first used.
    inner: Aligned,
}

/// Some rows of one adapter.
#[derive(Clone, Copy)]
struct Piece {
    adapter: usize,
    /// Index of the first one in `order`.
    first: usize,
    rows: usize,
}

impl Adapted {
    /// Buffers for batches of up to `max_rows` rows.
    pub(super) fn new(max_rows: usize) -> Result<Self, String> {
        Ok(Adapted {
            order: Vec::with_capacity(max_rows),
            pieces: Vec::with_capacity(max_rows),
            adapter_of: Vec::with_capacity(max_rows),
            inner: Aligned::reserved(max_rows * INPUT_PROJECTIONS * MAX_RANK)?,
        })
    }

    /// Groups the rows of `batch`.
    pub(super) fn plan(&mut self, batch: &Batch) {
        self.order.clear();
        self.pieces.clear();
        self.adapter_of.clear();
        if batch.adapters.is_empty() {
            return;
        }
        for segment in &batch.segments {
            let adapter = segment.adapter.unwrap_or(NONE);
            self.adapter_of.extend((0..segment.len).map(|_| adapter));
        }
        for adapter in 0..batch.adapters.len() {
            let begin = self.order.len();
            let own = |row: &u32| self.adapter_of[*row as usize] == adapter as u32;
            self.order.extend((0..self.adapter_of.len() as u32).filter(own));
            let end = self.order.len();
            self.pieces.extend((begin..end).step_by(PIECE_ROWS).map(|first| Piece {
                adapter,
                first,
                rows: PIECE_ROWS.min(end - first),
            }));
        }
    }
}

/// Place of a projection among those of its input.
fn place(projection: Projection) -> usize {
    match projection {
        Projection::Q | Projection::O | Projection::Gate | Projection::Down => 0,
        Projection::K | Projection::Up => 1,
        Projection::V => 2,
    }
}

/// Range in `inner` of the values `within` of `row` for `projection`.
fn inner_range(row: usize, projection: Projection, within: Range<usize>) -> Range<usize> {
    let first = (row * INPUT_PROJECTIONS + place(projection)) * MAX_RANK;
    first + within.start..first + within.end
}

impl Regions<'_> {
    /// Multiplies the rows with adapters of `source`, in the order of `packing`, by A of those of
    /// `projections`, which read it. A work item is some rows of an adapter with some rows of A.
    pub(super) fn shrink(
        &mut self,
        layer: usize,
        source: Source,
        packing: Packing,
        projections: &[Projection],
    ) {
        let adapters = &self.batch.adapters;
        let factors = |adapter: usize, projection| adapters[adapter].factors(layer, projection);
        let all = (0..adapters.len())
            .flat_map(|adapter| projections.iter().filter_map(move |&of| factors(adapter, of)));
        let widest = all.map(LowRank::rank).max().unwrap_or(0);
        if widest == 0 {
            return;
        }
        let (_, len) = projections[0].shape(self.config);
        let (x, adapted) = self.buffers.source_and_adapted(source);
        let Adapted { order, pieces, inner, .. } = adapted;
        let inner = SharedMut::new(inner);
        let workers = self.pool.num_workers();
        let step = match pieces.len() * projections.len() >= 2 * workers {
            true => MAX_ITEM_COLS,
            false => item_cols(widest, workers),
        };
        let chunks = widest.div_ceil(step);
        let (kernels, scratch) = (self.kernels, SharedMut::new(self.scratch));
        let work = |worker: usize, item: usize| {
            let (piece, projection) = (item / chunks / projections.len(), item / chunks);
            let (piece, projection) = (pieces[piece], projections[projection % projections.len()]);
            let Some(LowRank { a, scale, .. }) = factors(piece.adapter, projection) else { return };
            let cols = item % chunks * step..a.rows.min((item % chunks + 1) * step);
            if cols.is_empty() {
                return;
            }
            // SAFETY: each worker accesses only its own element of `scratch`.
            let WorkerScratch { tile, gathered, .. } =
                unsafe { &mut scratch.part(worker..worker + 1)[0] };
            let rows = &order[piece.first..][..piece.rows];
            kernels.product(Product {
                x: gather(x, rows, packing, len, gathered),
                packing: Packing::NATURAL,
                rows: rows.len(),
                weights: &a.bytes()[cols.start * a.row_len()..],
                dtype: a.dtype,
                cols: cols.len(),
                k: len,
                next: 0,
                out: tile,
            });
            for (&row, values) in rows.iter().zip(tile.chunks_exact(cols.len())) {
                let range = inner_range(row as usize, projection, cols.clone());
                // SAFETY: only this item writes these values of the row.
                let out = unsafe { inner.part(range) };
                out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * value);
            }
        };
        let items = pieces.len() * projections.len() * chunks;
        if order.len() * projections.len() * widest * len < PARALLEL_PRODUCTS {
            (0..items).for_each(|item| work(0, item));
        } else {
            self.pool.for_each(items, assist(self.side), work);
        }
    }
}

/// Rows `rows` of `x`, packed rows of `len` values, one after the other and in natural order:
/// where they are, if they are so already, else copied to `gathered`.
fn gather<'a>(
    x: &'a [f32],
    rows: &[u32],
    packing: Packing,
    len: usize,
    gathered: &'a mut [f32],
) -> &'a [f32] {
    let stride = Packing::stride(len);
    let (first, last) = (rows[0] as usize, rows[rows.len() - 1] as usize);
    if !packing.by_parity() && last - first + 1 == rows.len() {
        return &x[first * stride..];
    }
    for (&row, out) in rows.iter().zip(gathered.chunks_exact_mut(stride)) {
        let x = &x[row as usize * stride..][..stride];
        let (out, padding) = out.split_at_mut(len);
        match packing.by_parity() {
            false => out.copy_from_slice(&x[..len]),
            true => out.iter_mut().enumerate().for_each(|(k, out)| *out = x[packing.index(k)]),
        }
        padding.fill(0.0);
    }
    gathered
}

/// The adapters' part of the outputs of one projection.
#[derive(Clone, Copy)]
pub(super) struct Delta<'a> {
    adapted: &'a Adapted,
    adapters: &'a [Arc<Adapter>],
    layer: usize,
    projection: Projection,
}

impl<'a> Delta<'a> {
    /// For `batch`, which was planned, after [`Regions::shrink`]; `None` if it has no adapters.
    pub(super) fn new(
        adapted: &'a Adapted,
        batch: &'a Batch,
        layer: usize,
        projection: Projection,
    ) -> Option<Self> {
        let adapters = &batch.adapters[..];
        (!adapters.is_empty()).then_some(Delta { adapted, adapters, layer, projection })
    }

    /// Adds the products with B to outputs `cols` of the rows in `block`, `tile` `[block][cols]`.
    pub(super) fn add(
        &self,
        kernels: &Kernels,
        block: &Range<usize>,
        cols: &Range<usize>,
        tile: &mut [f32],
    ) {
        for (row, out) in block.clone().zip(tile.chunks_exact_mut(cols.len())) {
            let adapter = self.adapters.get(self.adapted.adapter_of[row] as usize);
            let factors = adapter.and_then(|of| of.factors(self.layer, self.projection));
            let Some(factors) = factors else { continue };
            let range = inner_range(row, self.projection, 0..factors.rank());
            kernels.expand(Expand {
                x: &self.adapted.inner[range],
                weights: factors.b.bytes(),
                dtype: factors.b.dtype,
                len: factors.b.cols,
                first: cols.start,
                out,
            });
        }
    }
}
