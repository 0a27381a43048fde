//! Weights: tensors in their stored dtype, borrowed from a mapped file or owned.

use std::sync::Arc;

/// Storage type of a weight tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// Brain float: the upper half of an f32.
    Bf16,
}

impl Dtype {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// Shared bytes of tensors: a mapped file or an owned buffer.
pub type Storage = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A row-major matrix `[rows, cols]` (`[out, in]` for a projection) in its stored dtype.
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
}

impl Tensor {
    /// Creates a `[rows, cols]` view of `storage` from byte `offset`; `None` if it exceeds the
    /// storage.
    pub fn new(
        dtype: Dtype,
        rows: usize,
        cols: usize,
        storage: Storage,
        offset: usize,
    ) -> Option<Self> {
        let bytes = rows.checked_mul(cols)?.checked_mul(dtype.bytes())?;
        let end = offset.checked_add(bytes)?;
        (end <= (*storage).as_ref().len()).then_some(Tensor { dtype, rows, cols, storage, offset })
    }

    /// The matrix's bytes, row-major, little-endian.
    pub fn bytes(&self) -> &[u8] {
        let len = self.rows * self.cols * self.dtype.bytes();
        &(*self.storage).as_ref()[self.offset..self.offset + len]
    }

    /// The bytes of row `row`.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let stride = self.cols * self.dtype.bytes();
        &self.bytes()[row * stride..(row + 1) * stride]
    }

    /// The matrix as f32, row-major: `[rows * cols]`. Exact for every dtype.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        match self.dtype {
            Dtype::F32 => decode(bytes, f32::from_le_bytes),
            Dtype::F16 => decode(bytes, |b| half::f16::from_le_bytes(b).to_f32()),
            Dtype::Bf16 => decode(bytes, |b| half::bf16::from_le_bytes(b).to_f32()),
        }
    }
}

/// Decodes little-endian elements of `N` bytes.
fn decode<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (elements, rest) = bytes.as_chunks::<N>();
    debug_assert!(rest.is_empty());
    elements.iter().map(|&bytes| element(bytes)).collect()
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
    /// Query projection: `[num_heads * head_dim, hidden]`.
    pub q: Tensor,
    /// Key projection: `[num_kv_heads * head_dim, hidden]`.
    pub k: Tensor,
    /// Value projection: `[num_kv_heads * head_dim, hidden]`.
    pub v: Tensor,
    /// Output projection: `[hidden, num_heads * head_dim]`.
    pub o: Tensor,
    /// RMSNorm before the MLP: `[hidden]`.
    pub mlp_norm: Vec<f32>,
    /// Gate projection: `[intermediate, hidden]`.
    pub gate: Tensor,
    /// Up projection: `[intermediate, hidden]`.
    pub up: Tensor,
    /// Down projection: `[hidden, intermediate]`.
    pub down: Tensor,
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
