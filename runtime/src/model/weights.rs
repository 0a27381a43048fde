//! Weights: tensors in their stored dtype, borrowed from a mapped file or owned.

use std::sync::Arc;

use super::{DeltaNet, Dtype, GatedMlp, Mlp};

/// Shared bytes of tensors: a mapped file or an owned buffer.
pub type Storage = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A matrix `[rows, cols]` (`[out, in]` for a projection) in its stored dtype: row-major, but for
/// those that the CPU backend repacks for itself.
///
/// Cloning is cheap: the bytes are shared. The start is not necessarily aligned beyond one byte:
/// safetensors aligns its data to 8 bytes at best, so kernels use unaligned loads.
#[derive(Clone)]
pub struct Tensor {
    /// Storage type.
    pub dtype: Dtype,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    storage: Storage,
    offset: usize,
    interleaved: bool,
}

impl Tensor {
    /// Creates a `[rows, cols]` view of `storage` from byte `offset`; `None` if it exceeds the
    /// storage, or if a row is no whole number of blocks.
    pub fn new(
        dtype: Dtype,
        rows: usize,
        cols: usize,
        storage: Storage,
        offset: usize,
    ) -> Option<Self> {
        if !cols.is_multiple_of(dtype.block_values()) {
            return None;
        }
        let blocks = rows.checked_mul(cols / dtype.block_values())?;
        let bytes = blocks.checked_mul(dtype.block_bytes())?;
        let end = offset.checked_add(bytes)?;
        let fits = end <= (*storage).as_ref().len();
        fits.then_some(Tensor { dtype, rows, cols, storage, offset, interleaved: false })
    }

    /// The same matrix with its bytes interleaved, in `storage` from byte `offset`: what the CPU
    /// backend repacks for itself.
    pub(crate) fn interleaved(&self, storage: Storage, offset: usize) -> Tensor {
        let end = offset + self.bytes().len();
        assert!(end <= (*storage).as_ref().len(), "the storage ends within the matrix");
        Tensor { storage, offset, interleaved: true, ..*self }
    }

    /// True if the bytes are interleaved: see [`interleaved`](Self::interleaved).
    pub(crate) fn is_interleaved(&self) -> bool {
        self.interleaved
    }

    /// The matrix's bytes, in its layout, little-endian.
    pub fn bytes(&self) -> &[u8] {
        let len = self.rows * self.row_len();
        &(*self.storage).as_ref()[self.offset..self.offset + len]
    }

    /// Bytes of a row.
    pub fn row_len(&self) -> usize {
        self.dtype.bytes_of(self.cols)
    }

    /// The rows from `first` as a matrix of their own, which shares the bytes; `None` if there are
    /// fewer than `rows`.
    pub fn part(&self, first: usize, rows: usize) -> Option<Tensor> {
        assert!(!self.interleaved, "an interleaved matrix has no parts");
        let offset = self.offset.checked_add(first.checked_mul(self.row_len())?)?;
        let fits = first.checked_add(rows)? <= self.rows;
        fits.then(|| Tensor { rows, offset, ..self.clone() })
    }

    /// The given `rows` as a matrix of their own: a copy.
    pub fn with_rows(&self, rows: impl Iterator<Item = usize>) -> Tensor {
        let mut bytes = Vec::new();
        let mut count = 0;
        for row in rows {
            bytes.extend_from_slice(self.row_bytes(row));
            count += 1;
        }
        Tensor::new(self.dtype, count, self.cols, Arc::new(bytes), 0).expect("as many bytes")
    }

    /// The bytes of row `row`.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        assert!(!self.interleaved, "an interleaved matrix has no bytes of a row");
        let stride = self.row_len();
        &self.bytes()[row * stride..(row + 1) * stride]
    }

    /// The matrix as f32, row-major: `[rows * cols]`; see [`Dtype::widen`].
    pub fn to_f32(&self) -> Vec<f32> {
        assert!(!self.interleaved, "an interleaved matrix is for products alone");
        let mut values = vec![0.0; self.rows * self.cols];
        self.dtype.widen(self.bytes(), &mut values);
        values
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?} [{}, {}])", self.dtype, self.rows, self.cols)
    }
}

/// Weights of one transformer layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// RMSNorm before attention: `[hidden]`.
    pub attention_norm: Vec<f32>,
    /// Query projection: `[num_heads * head_dim, hidden]`; in a hybrid's attention with the rows of
    /// a gate after those of each head. See [`DeltaNet`] for the projections of other layers.
    pub q: Tensor,
    /// Key projection: `[num_kv_heads * head_dim, hidden]`.
    pub k: Tensor,
    /// Value projection: `[num_kv_heads * head_dim, hidden]`.
    pub v: Tensor,
    /// Output projection: `[hidden, num_heads * head_dim]`.
    pub o: Tensor,
    /// The gated delta net in place of attention, if the layer has one.
    pub delta_net: Option<DeltaNet>,
    /// RMSNorm before the MLP: `[hidden]`.
    pub mlp_norm: Vec<f32>,
    /// The MLP, or the experts in its place.
    pub mlp: Mlp,
    /// Biases of the query, key and value projections, if the family has them.
    pub qkv_bias: Option<QkvBias>,
    /// Bias of the output projection, if the family has it: `[hidden]`.
    pub o_bias: Option<Vec<f32>>,
    /// Attention sinks, if the family has them: a score of each query head that takes part in the
    /// softmax without a value, `[num_heads]`.
    pub sinks: Option<Vec<f32>>,
    /// RMSNorm of queries and keys before RoPE, if the family has it.
    pub qk_norm: Option<QkNorm>,
    /// RMSNorm of what a block adds to the residual stream, if the family has it.
    pub post_norms: Option<PostNorms>,
}

/// Biases of the query, key and value projections (Qwen2).
#[derive(Clone, Debug)]
pub struct QkvBias {
    /// `[num_heads * head_dim]`
    pub q: Vec<f32>,
    /// `[num_kv_heads * head_dim]`
    pub k: Vec<f32>,
    /// `[num_kv_heads * head_dim]`
    pub v: Vec<f32>,
}

/// RMSNorm weights of queries and keys: of one head, shared by all heads of a layer (Qwen3,
/// Gemma 3), or of all heads together (OLMoE).
#[derive(Clone, Debug)]
pub struct QkNorm {
    /// `[head_dim]`, or `[num_heads * head_dim]`.
    pub q: Vec<f32>,
    /// `[head_dim]`, or `[num_kv_heads * head_dim]`.
    pub k: Vec<f32>,
}

/// RMSNorm weights after attention and after the MLP (Gemma 3).
#[derive(Clone, Debug)]
pub struct PostNorms {
    /// `[hidden]`
    pub attention: Vec<f32>,
    /// `[hidden]`
    pub mlp: Vec<f32>,
}

impl LayerWeights {
    /// The matrices in the order of the forward pass, those of all experts among them; a router is
    /// none, nor are a gated delta net's rates, as they are f32 in memory.
    pub fn matrices(&self) -> impl Iterator<Item = &Tensor> {
        let gate = self.delta_net.as_ref().map(|net| &net.gate);
        let inputs = [&self.q, &self.k, &self.v].into_iter().chain(gate);
        inputs.chain([&self.o]).chain(self.mlp.gated().flat_map(GatedMlp::matrices))
    }

    /// Weights that a token is multiplied with, where it goes to `experts` experts.
    pub(super) fn per_token(&self, experts: usize) -> usize {
        let values = |matrix: &Tensor| matrix.rows * matrix.cols;
        let all: usize = self.matrices().map(values).sum();
        let Some(mixture) = self.mlp.mixture() else { return all };
        let expert = mixture.experts.first().map_or([0; 3], |e| e.matrices().map(values));
        all - expert.iter().sum::<usize>() * mixture.experts.len().saturating_sub(experts)
    }

    /// The matrices, to be changed.
    pub fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let gate = self.delta_net.as_mut().map(|net| &mut net.gate);
        let inputs = [&mut self.q, &mut self.k, &mut self.v].into_iter().chain(gate);
        inputs.chain([&mut self.o]).chain(self.mlp.gated_mut().flat_map(GatedMlp::matrices_mut))
    }
}

impl Weights {
    /// A quantized type among the matrices, if any.
    pub fn quantized(&self) -> Option<Dtype> {
        let of_layers = self.layers.iter().flat_map(LayerWeights::matrices);
        let mut all = of_layers.chain([&self.embed, &self.lm_head]).map(|tensor| tensor.dtype);
        all.find(|dtype| dtype.is_quantized())
    }
}

/// All weights of a model.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Token embeddings: `[vocab, hidden]`.
    pub embed: Tensor,
    /// Layers, first to last: `[num_layers]`.
    pub layers: Vec<LayerWeights>,
    /// Final RMSNorm: `[hidden]`.
    pub norm: Vec<f32>,
    /// Output projection: `[vocab, hidden]`; shares the bytes of `embed` if tied.
    pub lm_head: Tensor,
    /// Bytes of the mapped files, which come into memory as they are read; 0 for weights that were
    /// generated there.
    pub mapped_bytes: usize,
}
