//! Activations in the narrow types of [`Compute::Fast`].

use crate::model::{Dtype, Model, Tensor, Weights};

use super::{Compute, Isa};
use trail_cpu_kernels::Aligned;
use trail_cpu_kernels::SharedMut;
use trail_cpu_kernels::{Packing, PairKernels, Q8Block, Q8Kernels, pairs_of};

/// The kernels of narrow products. `None`: the model has no weights for them, or f32 is faster.
#[derive(Clone, Copy, Default)]
pub(super) struct NarrowKernels {
    /// Of quantized weights, with activations in 8 bits.
    pub(super) q8: Option<&'static Q8Kernels>,
    /// Of bf16 weights, with activations in bf16.
    pub(super) pairs: Option<&'static PairKernels>,
}

impl NarrowKernels {
    /// The kernels for `model` with the registers of `isa`.
    pub(super) fn select(model: &Model, compute: Compute, isa: Isa) -> Result<Self, String> {
        if compute == Compute::Exact {
            return Ok(NarrowKernels::default());
        }
        let any = |of: fn(Dtype) -> bool| matrices(&model.weights).any(|tensor| of(tensor.dtype));
        let q8 = any(Dtype::is_quantized).then(|| Q8Kernels::select(isa)).transpose()?;
        let has_bf16 = any(|dtype| dtype == Dtype::Bf16);
        Ok(NarrowKernels { q8, pairs: PairKernels::fastest(isa).filter(|_| has_bf16) })
    }

    /// The kernels of products with `weights`; `None`: f32.
    pub(super) fn of(&self, weights: &Tensor) -> Option<NarrowKernel> {
        match weights.dtype {
            dtype if dtype.is_quantized() => self.q8.map(NarrowKernel::Q8),
            // A row of an odd length begins within a pair.
            Dtype::Bf16 if weights.cols.is_multiple_of(2) => self.pairs.map(NarrowKernel::Pairs),
            _ => None,
        }
    }
}

/// The matrices that activations are multiplied with.
pub(super) fn matrices(weights: &Weights) -> impl Iterator<Item = &Tensor> {
    let layers = weights.layers.iter().flat_map(|layer| {
        [&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down]
    });
    layers.chain([&weights.lm_head])
}

/// One kind of narrow products.
#[derive(Clone, Copy)]
pub(super) enum NarrowKernel {
    Q8(&'static Q8Kernels),
    Pairs(&'static PairKernels),
}

/// The input of the current products, in each narrow type that their weights need.
pub(super) struct Narrow {
    pub(super) kernels: NarrowKernels,
    /// `[rows][Q8Block::per_row(len)]`
    q8: Vec<Q8Block>,
    /// Pairs of bf16 `[rows][Packing::stride(pairs_of(len))]`.
    pairs: Aligned,
}

impl Narrow {
    /// Buffers for `rows` rows of up to `widest` activations, where `kernels` need them.
    pub(super) fn new(kernels: NarrowKernels, rows: usize, widest: usize) -> Result<Self, String> {
        let q8 = kernels.q8.map_or(0, |_| rows * Q8Block::per_row(widest));
        let pairs = kernels.pairs.map_or(0, |_| rows * Packing::stride(pairs_of(widest)));
        let q8 = vec![Q8Block::default(); q8];
        Ok(Narrow { kernels, q8, pairs: Aligned::zeroed(pairs)? })
    }

    /// The writer of the input of products with `matrices`, of one width; `None` if none is narrow.
    pub(super) fn writer(&mut self, matrices: &[&Tensor]) -> Option<Writer<'_>> {
        let (mut q8, mut pairs) = (None, None);
        for kernel in matrices.iter().filter_map(|tensor| self.kernels.of(tensor)) {
            match kernel {
                NarrowKernel::Q8(kernels) => q8 = Some(kernels),
                NarrowKernel::Pairs(kernels) => pairs = Some(kernels),
            }
        }
        (q8.is_some() || pairs.is_some()).then(|| Writer {
            q8: q8.map(|kernels| (kernels, SharedMut::new(&mut self.q8[..]))),
            pairs: pairs.map(|kernels| (kernels, SharedMut::new(&mut self.pairs[..]))),
        })
    }

    /// The rows from `first` of activations in 8 bits, of length `len`.
    pub(super) fn q8(&self, first: usize, len: usize) -> &[Q8Block] {
        &self.q8[first * Q8Block::per_row(len)..]
    }

    /// The rows from `first` of pairs of bf16, of `len` activations.
    pub(super) fn pairs(&self, first: usize, len: usize) -> &[f32] {
        &self.pairs[first * Packing::stride(pairs_of(len))..]
    }
}

/// Writes rows of the input, from several threads.
pub(super) struct Writer<'a> {
    q8: Option<(&'static Q8Kernels, SharedMut<'a, Q8Block>)>,
    pairs: Option<(&'static PairKernels, SharedMut<'a, f32>)>,
}

impl Writer<'_> {
    /// Converts row `row`.
    ///
    /// # Safety
    ///
    /// No other thread may write the row during the call, with the same length of `x`.
    pub(super) unsafe fn write(&self, row: usize, x: &[f32]) {
        if let Some((kernels, out)) = &self.q8 {
            let blocks = Q8Block::per_row(x.len());
            // SAFETY: only this call writes the row, by contract.
            kernels.quantize_row(x, unsafe { out.part(row * blocks..(row + 1) * blocks) });
        }
        if let Some((kernels, out)) = &self.pairs {
            let stride = Packing::stride(pairs_of(x.len()));
            // SAFETY: as above.
            kernels.round_row(x, unsafe { out.part(row * stride..(row + 1) * stride) });
        }
    }
}
