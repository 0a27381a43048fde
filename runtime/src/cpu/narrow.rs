//! Activations in the narrow types of [`Compute::Fast`].

use crate::model::{Dtype, LayerWeights, Model, Tensor, Weights};

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
    weights.layers.iter().flat_map(LayerWeights::matrices).chain([&weights.lm_head])
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
    /// `[rows][Q8Block::per_row(len)]`; in a mixture, copies of rows follow.
    q8: Vec<Q8Block>,
    /// Pairs of bf16 `[rows][Packing::stride(pairs_of(len))]`.
    pairs: Aligned,
}

impl Narrow {
    /// Buffers for inputs of `shapes`, rows and width, where `kernels` need them.
    pub(super) fn new(kernels: NarrowKernels, shapes: &[(usize, usize)]) -> Result<Self, String> {
        let longest =
            |of: fn(usize) -> usize| shapes.iter().map(|(rows, len)| rows * of(*len)).max();
        let q8 = kernels.q8.and_then(|_| longest(Q8Block::per_row)).unwrap_or(0);
        let pairs = kernels.pairs.and_then(|_| longest(|len| Packing::stride(pairs_of(len))));
        let pairs = pairs.unwrap_or(0);
        let q8 = vec![Q8Block::default(); q8];
        Ok(Narrow { kernels, q8, pairs: Aligned::zeroed(pairs)? })
    }

    /// The writer of the input of products with `matrices`, of one width; `None` if none is narrow.
    pub(super) fn writer<'t>(
        &mut self,
        matrices: impl IntoIterator<Item = &'t Tensor>,
    ) -> Option<Writer<'_>> {
        let (mut q8, mut pairs) = (None, None);
        for kernel in matrices.into_iter().filter_map(|tensor| self.kernels.of(tensor)) {
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

    /// The copier of the first `rows` rows of `len` activations to places behind them, in the types
    /// that products with `matrices` read.
    pub(super) fn copier<'t>(
        &mut self,
        rows: usize,
        len: usize,
        matrices: impl IntoIterator<Item = &'t Tensor>,
    ) -> Copier<'_> {
        let (mut q8, mut pairs) = (None, None);
        for kernel in matrices.into_iter().filter_map(|tensor| self.kernels.of(tensor)) {
            match kernel {
                NarrowKernel::Q8(_) => q8 = Some(Q8Block::per_row(len)),
                NarrowKernel::Pairs(_) => pairs = Some(Packing::stride(pairs_of(len))),
            }
        }
        Copier {
            q8: q8.map(|stride| Rows::new(&mut self.q8, rows, stride)),
            pairs: pairs.map(|stride| Rows::new(&mut self.pairs, rows, stride)),
        }
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

/// Copies rows of the input, from several threads.
pub(super) struct Copier<'a> {
    q8: Option<Rows<'a, Q8Block>>,
    pairs: Option<Rows<'a, f32>>,
}

impl Copier<'_> {
    /// Copies row `from` to place `to`, counted from the end of the rows.
    ///
    /// # Safety
    ///
    /// No other thread may write the place during the call.
    pub(super) unsafe fn copy(&self, from: usize, to: usize) {
        // SAFETY: by contract.
        unsafe {
            self.q8.iter().for_each(|rows| rows.copy(from, to));
            self.pairs.iter().for_each(|rows| rows.copy(from, to));
        }
    }
}

/// Rows of a buffer, and the places behind them.
pub(super) struct Rows<'a, T> {
    rows: &'a [T],
    places: SharedMut<'a, T>,
    stride: usize,
}

impl<'a, T: Copy> Rows<'a, T> {
    /// The first `rows` rows of `buffer`, each of `stride` values.
    pub(super) fn new(buffer: &'a mut [T], rows: usize, stride: usize) -> Self {
        let (rows, places) = buffer.split_at_mut(rows * stride);
        Rows { rows, places: SharedMut::new(places), stride }
    }

    /// Copies row `from` to place `to`.
    ///
    /// # Safety
    ///
    /// No other thread may write the place during the call.
    pub(super) unsafe fn copy(&self, from: usize, to: usize) {
        let range = |row: usize| row * self.stride..(row + 1) * self.stride;
        // SAFETY: by contract.
        unsafe { self.places.part(range(to)) }.copy_from_slice(&self.rows[range(from)]);
    }
}
