//! The parallel regions of a mixture of experts.
//!
//! The router scores all experts for each row; rows are grouped by expert, so that an expert's
//! weights are read once for all of its rows, and an expert without rows is not read at all. The
//! products split every expert's outputs over the threads: all are busy with a single row.

use crate::model::{GatedMlp, Mixture, MixtureConfig, Tensor};

use super::buffers::{Buffers, Source, WorkerScratch};
use super::linear::{Linear, assist};
use super::narrow::Rows;
use super::regions::{Regions, add_bias, for_each_row};
use super::routes::{Routes, choose};
use trail_cpu_kernels::{INTERLEAVED_ROWS, Packing, SharedMut};

impl Regions<'_> {
    /// Norm, router, experts: adds the weighted sum of each row's experts to the residual stream.
    pub(super) fn mixture(
        &mut self,
        layer: usize,
        norm: &[f32],
        config: &MixtureConfig,
        mixture: &Mixture,
    ) {
        let rows = self.batch.rows();
        let inputs = || mixture.experts.iter().chain(&mixture.shared);
        let packing =
            self.packing(inputs().flat_map(|mlp| [&mlp.gate, &mlp.up]).chain([&mixture.router]));
        self.norm(norm, packing);
        self.route(config, mixture, packing);
        let first = inputs().flat_map(|mlp| [&mlp.gate, &mlp.up]);
        self.narrow_rows(Source::Normed, rows, first.clone());
        self.buffers.routes.group(config, layer, rows);
        self.gather(first);
        self.gate_and_up(&mixture.experts, packing, None);
        self.add_experts(&mixture.experts);
        if let Some(shared) = &mixture.shared {
            let shared = std::slice::from_ref(shared);
            self.buffers.routes.shared(config, rows);
            self.narrow_rows(Source::Normed, rows, [&shared[0].gate, &shared[0].up]);
            self.gate_and_up(shared, packing, None);
            self.add_experts(shared);
        }
    }

    /// Scores the experts in f32, and chooses those of each row.
    fn route(&mut self, config: &MixtureConfig, mixture: &Mixture, packing: Packing) {
        let rows = self.batch.rows();
        let Buffers { normed, narrow, routes, .. } = &mut *self.buffers;
        let Routes { scores, choices, .. } = routes;
        let width = config.router_rows();
        let out = SharedMut::new(scores);
        let (weights, bias) = (&mixture.router, mixture.router_bias.as_deref());
        let (kernels, x, first) = (self.kernels, &**normed, 0);
        Linear { kernels, x, packing, narrow, first, rows, weights, delta: None }.for_each_tile(
            self.pool,
            self.scratch,
            self.side,
            |row, cols, values| {
                let first = row * width + cols.start;
                // SAFETY: only this item writes these scores.
                let out = unsafe { out.part(first..first + cols.len()) };
                out.copy_from_slice(values);
                add_bias(out, bias.map(|bias| &bias[cols]));
            },
        );
        let (scores, per_row) = (&*scores, config.experts_per_token);
        let choices = SharedMut::new(choices);
        for_each_row(self.pool, self.side, rows, width, |_, row| {
            // SAFETY: each row is written by one item.
            let chosen = unsafe { choices.part(row * per_row..(row + 1) * per_row) };
            choose(config, &scores[row * width..][..width], chosen);
        });
    }

    /// Copies the rows of the experts whose rows are apart, in the types that `matrices` read.
    fn gather<'t>(&mut self, matrices: impl Iterator<Item = &'t Tensor> + Clone) {
        let (rows, hidden) = (self.batch.rows(), self.config.hidden_size);
        let Buffers { normed, narrow, routes, .. } = &mut *self.buffers;
        let is_wide = matrices.clone().any(|tensor| narrow.kernels.of(tensor).is_none());
        let wide = is_wide.then(|| Rows::new(normed, rows, Packing::stride(hidden)));
        let (narrow, copies) = (narrow.copier(rows, hidden, matrices), &routes.copies[..]);
        for_each_row(self.pool, self.side, copies.len(), hidden, |_, index| {
            // SAFETY: each copy is written by one item.
            unsafe {
                narrow.copy(copies[index], index);
                wide.iter().for_each(|rows| rows.copy(copies[index], index));
            }
        });
    }

    /// Down projections of `mlps`, weighted and added to the residual stream in the order of the
    /// groups. A work item is some features of all groups, so that each is summed by one thread.
    fn add_experts(&mut self, mlps: &[GatedMlp]) {
        let hidden = self.config.hidden_size;
        let downs = mlps.iter().map(|mlp| &mlp.down);
        let packing = self.packing(downs.clone());
        self.narrow_rows(Source::Inner, self.buffers.routes.assignments.len(), downs);
        let Buffers { hidden: stream, inner, narrow, routes, .. } = &mut *self.buffers;
        let (narrow, routes) = (&*narrow, &*routes);
        let (kernels, x, weights) = (self.kernels, &**inner, &mlps[0].down);
        let (first, rows, delta) = (0, routes.max_group_rows(), None);
        let largest = Linear { kernels, x, packing, narrow, first, rows, weights, delta };
        let workers = self.pool.num_workers();
        // Whole groups of interleaved rows: experts may differ in their types.
        let step = largest.item_cols(workers, 1).next_multiple_of(INTERLEAVED_ROWS);
        let (stream, scratch) = (SharedMut::new(stream), SharedMut::new(self.scratch));
        self.pool.for_each(hidden.div_ceil(step), assist(self.side), |worker, item| {
            // SAFETY: each worker accesses only its own element of `scratch`.
            let WorkerScratch { tile, .. } = unsafe { &mut scratch.part(worker..worker + 1)[0] };
            let cols = item * step..hidden.min((item + 1) * step);
            for group in &routes.groups {
                let (first, rows) = (group.first, group.rows);
                let linear = Linear { first, rows, weights: &mlps[group.mlp].down, ..largest };
                for block in linear.row_blocks() {
                    linear.product(&block, &cols, workers, tile);
                    let bias = mlps[group.mlp].bias.as_ref().map(|bias| &bias.down[cols.clone()]);
                    let rows = tile.chunks_exact_mut(cols.len());
                    for (assignment, values) in routes.assignments[block].iter().zip(rows) {
                        add_bias(values, bias);
                        let first = assignment.row * hidden + cols.start;
                        // SAFETY: only this item writes these columns of any row.
                        let out = unsafe { stream.part(first..first + cols.len()) };
                        let add =
                            |(out, value): (&mut f32, &f32)| *out += assignment.weight * value;
                        out.iter_mut().zip(&*values).for_each(add);
                    }
                }
            }
        });
    }
}
