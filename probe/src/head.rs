//! The probe's MLP, d -> hidden -> ReLU -> bins (TRAIL section 3.1; the paper's is 4096 -> 512 ->
//! 10).
//!
//! The forward pass is split into independent tasks, so that idle threads of the caller's pool can
//! run them in any order: a task is one block of [`ROW_BLOCK`] rows times one chunk of 256 hidden
//! units.
//!
//! ```text
//! hidden = bias of the age + share of the prompt
//! for each K block of 256            copy its activations into a dense block
//!     hidden += activations * W1     weights are read in memory order
//! hidden = relu(hidden)
//! logits of the chunk = hidden * W2  the same kernel, a panel for each 16 bins
//! ```
//!
//! The prompt's share is one more row of such a product, computed once ([`Head::read_prompt`]).
//! [`Head::finish_rows`] then adds the chunks' logits in ascending order. No sum depends on which
//! rows share a batch or on the threads and the order of the tasks, so no bit of the result does.

use std::ops::Range;

use trail_platform::Isa;

use crate::age::{AGES, age_class};
use crate::inputs::{Inputs, PromptSums, Rows, log_length};
use crate::kernel::{DEPTH_MAX, Kernel, Product, ROW_LINES};
use crate::line::{LANES, Line, ZERO, floats, floats_mut};
use crate::packed::{HeadDtype, PAIR, Packed};
pub use crate::partials::ROW_BLOCK;
use crate::partials::{Partials, Region};
use crate::softmax::softmax;
use crate::weights::Weights;

/// Inputs between two visits to the sums in memory.
const K_BLOCK: usize = DEPTH_MAX;

/// Panels of 16 hidden units in a task's chunk, 256 units: fewer would copy the activations more
/// often, which takes a tenth of the time at 128.
const CHUNK_PANELS: usize = if cfg!(miri) { 1 } else { 16 };

/// The MLP with its weights packed for the kernels. Immutable, shared by all threads.
pub struct Head {
    d: usize,
    /// Hidden units in panels of 16, the last one padded with zero weights.
    panels: usize,
    bins: usize,
    /// `[chunk][K block][panel][k / 2]` pairs, each the weights of the panel's 16 units for two
    /// inputs: the order in which a task reads them.
    hidden_weight: Packed,
    /// `[AGES, panels]` lines: the biases of each class of age.
    hidden_bias: Box<[Line]>,
    prompt: Option<PackedPrompt>,
    inputs: Inputs,
    /// `[chunk][panel of 16 bins][hidden unit / 2]` pairs, each the weights of the panel's bins for
    /// two units.
    output_weight: Packed,
    /// `[bins]`.
    output_bias: Box<[f32]>,
    kernel: Kernel,
}

/// Packed weights of the prompt's share.
struct PackedPrompt {
    /// In the order of `hidden_weight`.
    mean_weight: Packed,
    /// `[panels]` lines.
    length_weight: Box<[Line]>,
}

impl Head {
    /// Packs `weights` in bf16, for the kernels of [`Isa::detect`]. Panics if the length of a
    /// tensor contradicts the sizes.
    pub fn new(weights: &Weights) -> Head {
        Head::with_dtype(weights, HeadDtype::default())
    }

    /// As [`Head::new`], with the weights in `dtype`.
    pub fn with_dtype(weights: &Weights, dtype: HeadDtype) -> Head {
        weights.check();
        let panels = weights.hidden.div_ceil(LANES);
        let weights = dtype.round(weights);
        Head {
            d: weights.d,
            panels,
            bins: weights.bins,
            hidden_weight: pack_hidden(&weights.hidden_weight, &weights, panels, dtype),
            hidden_bias: pack_biases(&weights, panels),
            prompt: weights.prompt.as_ref().map(|prompt| PackedPrompt {
                mean_weight: pack_hidden(&prompt.mean_weight, &weights, panels, dtype),
                length_weight: lines_of(&prompt.length_weight, panels).into(),
            }),
            inputs: weights.inputs(),
            output_weight: pack_output(&weights, panels, dtype.output()),
            output_bias: weights.output_bias.into(),
            kernel: Kernel::select(Isa::Auto).expect("every CPU runs what was detected"),
        }
    }

    /// The same head on the kernels of `isa`; an error if this CPU cannot run them. The packing is
    /// common to all.
    pub fn with_isa(self, isa: Isa) -> Result<Head, String> {
        Ok(Head { kernel: Kernel::select(isa)?, ..self })
    }

    /// Width of an activation.
    pub fn d(&self) -> usize {
        self.d
    }

    /// The inputs beside the activation.
    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    /// Bins, the width of an output row.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// Panels of 16 bins, the last one padded with zero weights.
    pub(crate) fn output_panels(&self) -> usize {
        self.bins.div_ceil(LANES)
    }

    /// The instruction set in use; never [`Isa::Auto`].
    pub fn isa(&self) -> Isa {
        self.kernel.isa()
    }

    /// Multiply-adds of one row; also the number of weights that a pass over a row block reads.
    pub fn macs(&self) -> usize {
        self.panels * LANES * (self.d + self.bins)
    }

    /// Bytes of weights that a pass over a row block reads.
    pub fn weight_bytes(&self) -> usize {
        let of =
            |width: usize, packed: &Packed| self.panels * LANES * width * packed.dtype().bytes();
        of(self.d, &self.hidden_weight) + of(self.bins, &self.output_weight)
    }

    /// Independent tasks of a pass over `rows` rows: row blocks times chunks of hidden units.
    pub fn tasks(&self, rows: usize) -> usize {
        rows.div_ceil(ROW_BLOCK) * self.chunks()
    }

    /// Runs one task of `0..tasks(rows)` on `rows` rows of `of`. Tasks may run at the same time on
    /// different threads and in any order. Panics if `partials` has room for fewer rows, or if a
    /// row lacks the share of its prompt.
    pub fn run_task(&self, task: usize, of: Rows<'_>, rows: usize, partials: &Partials) {
        assert_eq!(of.activations.len(), rows * self.d, "activations not [{rows}, {}]", self.d);
        let (block, chunk) = (task / self.chunks(), task % self.chunks());
        let first = block * ROW_BLOCK;
        let last = rows.min(first + ROW_BLOCK);
        let mut region = partials.region(task);
        self.hidden_chunk(chunk, of, first..last, &mut region);
        self.chunk_logits(chunk, last - first, &mut region);
    }

    /// The share of a prompt, not yet computed.
    pub fn prompt_sums(&self) -> PromptSums {
        let lines = if self.prompt.is_some() { self.panels } else { 0 };
        PromptSums(vec![ZERO; lines].into())
    }

    /// Computes the share of a prompt of `tokens` tokens with the `mean` `[d]` over its
    /// activations; nothing for a head that does not read it. Working memory is that of one task.
    pub fn read_prompt(&self, mean: &[f32], tokens: u32, partials: &Partials, to: &mut PromptSums) {
        let Some(prompt) = &self.prompt else { return };
        assert_eq!(mean.len(), self.d, "the width of an activation");
        let log = log_length(tokens);
        let region = &mut *partials.region(0);
        for chunk in 0..self.chunks() {
            let panels = self.chunk_panels(chunk);
            let sums = &mut region.hidden[..panels.len()];
            for (sum, weight) in sums.iter_mut().zip(&prompt.length_weight[panels.clone()]) {
                *sum = Line(weight.0.map(|weight| weight * log));
            }
            self.add_products(&prompt.mean_weight, chunk, mean, region);
            to.0[panels.clone()].copy_from_slice(&region.hidden[..panels.len()]);
        }
    }

    /// Turns the finished tasks' logits into the probabilities of `rows`: `out` is `[rows.len(),
    /// bins]`. Every task of the row blocks concerned must have run in this pass.
    pub fn finish_rows(&self, rows: Range<usize>, partials: &Partials, out: &mut [f32]) {
        assert_eq!(out.len(), rows.len() * self.bins, "out is not [{}, {}]", rows.len(), self.bins);
        let mut rest = out;
        let mut first = rows.start;
        while first < rows.end {
            let block = first / ROW_BLOCK;
            let last = rows.end.min((block + 1) * ROW_BLOCK);
            let (here, after) = rest.split_at_mut((last - first) * self.bins);
            self.finish_block(block, first % ROW_BLOCK, partials, here);
            (rest, first) = (after, last);
        }
    }

    /// The whole pass on the calling thread: `out` is `[rows, bins]`.
    pub fn forward(&self, of: Rows<'_>, rows: usize, partials: &Partials, out: &mut [f32]) {
        for task in 0..self.tasks(rows) {
            self.run_task(task, of, rows, partials);
        }
        self.finish_rows(0..rows, partials, out);
    }

    /// Chunks of hidden units.
    fn chunks(&self) -> usize {
        self.panels.div_ceil(CHUNK_PANELS)
    }

    /// The panels of `chunk`.
    fn chunk_panels(&self, chunk: usize) -> Range<usize> {
        chunk * CHUNK_PANELS..self.panels.min((chunk + 1) * CHUNK_PANELS)
    }

    /// Fills the region with relu(W1 x + b + p) of the chunk's units for `rows`, b the biases of
    /// their ages and p the shares of their prompts.
    fn hidden_chunk(&self, chunk: usize, of: Rows<'_>, rows: Range<usize>, region: &mut Region) {
        let panels = self.chunk_panels(chunk);
        let activations = &of.activations[rows.start * self.d..rows.end * self.d];
        let hidden = region.hidden.chunks_exact_mut(ROW_LINES);
        for (row, sums) in rows.clone().zip(hidden) {
            let beside = (of.beside)(row);
            let biases = &self.hidden_bias[age_class(beside.generated) * self.panels..];
            let sums = &mut sums[..panels.len()];
            sums.copy_from_slice(&biases[panels.clone()]);
            if self.prompt.is_some() {
                let prompt = &beside.prompt.expect("the share of the prompt").0[panels.clone()];
                for (sum, share) in floats_mut(sums).iter_mut().zip(floats(prompt)) {
                    *sum += share;
                }
            }
        }
        self.add_products(&self.hidden_weight, chunk, activations, region);
        let hidden = &mut region.hidden[..rows.len() * ROW_LINES];
        for line in hidden.chunks_exact_mut(ROW_LINES).flat_map(|row| &mut row[..CHUNK_PANELS]) {
            // Not f32::max, which would turn NaN into 0 and hide an invalid activation.
            line.0.iter_mut().for_each(|h| *h = if *h < 0.0 { 0.0 } else { *h });
        }
    }

    /// Adds the products of the chunk's units of `weight` and `activations` `[rows, d]` to the
    /// region's hidden units.
    fn add_products(
        &self,
        weight: &Packed,
        chunk: usize,
        activations: &[f32],
        region: &mut Region,
    ) {
        let panels = self.chunk_panels(chunk);
        let rows = activations.len() / self.d;
        // Chunks before this one are full, and so are this chunk's K blocks before the current one.
        let chunk_start = panels.start * self.d.div_ceil(PAIR);
        for k in (0..self.d).step_by(K_BLOCK) {
            let inputs = k..self.d.min(k + K_BLOCK);
            let depth = inputs.len().next_multiple_of(PAIR);
            let block_start = chunk_start + panels.len() * k / PAIR;
            copy_inputs(activations, self.d, inputs, &mut region.inputs);
            self.kernel.multiply_add(Product {
                rows,
                depth,
                panels: panels.len(),
                a: &region.inputs,
                b: weight.bytes(block_start..block_start + panels.len() * depth / PAIR),
                dtype: weight.dtype(),
                c: &mut region.hidden[..rows * ROW_LINES],
                c_stride: ROW_LINES,
            });
        }
    }

    /// Fills the region's logits with the chunk's share of W2 h for its first `rows` rows.
    fn chunk_logits(&self, chunk: usize, rows: usize, region: &mut Region) {
        let panels = self.output_panels();
        let units = self.chunk_panels(chunk);
        let pairs = panels * LANES / PAIR;
        region.logits[..rows * panels].fill(ZERO);
        self.kernel.multiply_add(Product {
            rows,
            depth: units.len() * LANES,
            panels,
            a: &region.hidden,
            b: self.output_weight.bytes(units.start * pairs..units.end * pairs),
            dtype: self.output_weight.dtype(),
            c: &mut region.logits,
            c_stride: panels,
        });
    }

    /// Probabilities of the rows of `block` from `first` on: `out` is `[rows, bins]`.
    fn finish_block(&self, block: usize, first: usize, partials: &Partials, out: &mut [f32]) {
        let rows = out.chunks_exact_mut(self.bins);
        rows.for_each(|row| row.copy_from_slice(&self.output_bias));
        let width = self.output_panels() * LANES;
        for chunk in 0..self.chunks() {
            let region = partials.region(block * self.chunks() + chunk);
            let logits = floats(&region.logits)[first * width..].chunks_exact(width);
            for (row, logits) in out.chunks_exact_mut(self.bins).zip(logits) {
                row.iter_mut().zip(logits).for_each(|(sum, logit)| *sum += logit);
            }
        }
        out.chunks_exact_mut(self.bins).for_each(softmax);
    }
}

impl Partials {
    /// Room for `max_rows` rows of `head` (about 210 KiB for each task of 96 rows).
    pub fn new(head: &Head, max_rows: usize) -> Partials {
        Partials::with_regions(head.tasks(max_rows), max_rows, head.output_panels())
    }
}

/// Copies columns `k` of row-major `activations` (`[rows, d]`) into the dense block. In place, rows
/// are a power of two apart, and the six or twelve rows of a tile would conflict in the same cache
/// sets. An odd number of columns is padded with one zero.
fn copy_inputs(activations: &[f32], d: usize, k: Range<usize>, inputs: &mut [Line]) {
    for (row, to) in activations.chunks_exact(d).zip(inputs.chunks_exact_mut(ROW_LINES)) {
        let to = floats_mut(to);
        to[..k.len()].copy_from_slice(&row[k.clone()]);
        to[k.len()..k.len().next_multiple_of(PAIR)].fill(0.0);
    }
}

/// `values` `[hidden]` in `panels` lines, padded with zeros.
fn lines_of(values: &[f32], panels: usize) -> Vec<Line> {
    let mut lines = vec![ZERO; panels];
    floats_mut(&mut lines)[..values.len()].copy_from_slice(values);
    lines
}

/// The biases of each class of age, `[AGES, panels]` lines.
fn pack_biases(weights: &Weights, panels: usize) -> Box<[Line]> {
    (0..AGES).flat_map(|age| lines_of(&weights.biases(age), panels)).collect()
}

/// Packs `matrix` `[hidden, d]` of `weights` into `[chunk][K block][panel][k / 2]` pairs; units and
/// inputs past the last have zero weights.
fn pack_hidden(matrix: &[f32], weights: &Weights, panels: usize, dtype: HeadDtype) -> Packed {
    let weight = |unit: usize, k: usize| {
        let inside = unit < weights.hidden && k < weights.d;
        if inside { matrix[unit * weights.d + k] } else { 0.0 }
    };
    let blocks = (0..panels)
        .step_by(CHUNK_PANELS)
        .flat_map(|chunk| (0..weights.d).step_by(K_BLOCK).map(move |block| (chunk, block)));
    let columns = blocks.flat_map(|(chunk, block)| {
        let inputs = (block..weights.d.min(block + K_BLOCK)).step_by(PAIR);
        let panels = chunk..panels.min(chunk + CHUNK_PANELS);
        panels.flat_map(move |panel| inputs.clone().map(move |k| (panel, k)))
    });
    let weight = &weight;
    let pair = |(panel, k)| move |lane| [k, k + 1].map(|k| weight(panel * LANES + lane, k));
    Packed::new(dtype, columns.map(pair))
}

/// Packs `[bins, hidden]` into `[chunk][panel of 16 bins][hidden unit / 2]` pairs; bins and units
/// past the last have zero weights.
fn pack_output(weights: &Weights, panels: usize, dtype: HeadDtype) -> Packed {
    let weight = |bin: usize, unit: usize| {
        let inside = bin < weights.bins && unit < weights.hidden;
        if inside { weights.output_weight[bin * weights.hidden + unit] } else { 0.0 }
    };
    let columns = (0..panels).step_by(CHUNK_PANELS).flat_map(|chunk| {
        let units = (chunk * LANES..panels.min(chunk + CHUNK_PANELS) * LANES).step_by(PAIR);
        let bins = (0..weights.bins).step_by(LANES);
        bins.flat_map(move |first| units.clone().map(move |unit| (first, unit)))
    });
    let weight = &weight;
    let pair = |(first, unit)| move |lane| [unit, unit + 1].map(|unit| weight(first + lane, unit));
    Packed::new(dtype, columns.map(pair))
}

#[cfg(test)]
mod tests;
