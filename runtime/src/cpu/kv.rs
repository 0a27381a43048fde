//! Paged KV pool: keys and values of all layers in blocks of [`BLOCK_TOKENS`] tokens.

use crate::backend::BLOCK_TOKENS;
use crate::model::ModelConfig;

use super::aligned::Aligned;
use super::simd::MAX_LANES;

/// `[block][layer][K|V][kv head][BLOCK_TOKENS][head_dim]` f32.
///
/// All layers of a block are contiguous, so that swapping a block is one copy.
pub struct KvPool {
    data: Aligned,
    num_blocks: usize,
    shape: KvShape,
}

/// Strides within the pool, in floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    /// Floats of a block.
    pub(crate) block_len: usize,
    /// Floats of one layer's keys (or values) in a block.
    pub(crate) plane_len: usize,
    /// Floats of one head's keys (or values) in a block.
    pub(crate) head_len: usize,
    head_dim: usize,
}

impl KvShape {
    fn new(config: &ModelConfig) -> Self {
        let head_len = BLOCK_TOKENS * config.head_dim;
        let plane_len = config.num_kv_heads * head_len;
        let block_len = config.num_layers * 2 * plane_len;
        KvShape { block_len, plane_len, head_len, head_dim: config.head_dim }
    }

    /// Offset in a block of a layer's and head's keys, in floats.
    pub(crate) fn keys(&self, layer: usize, kv_head: usize) -> usize {
        layer * 2 * self.plane_len + kv_head * self.head_len
    }

    /// Offset in a block of a layer's and head's values, in floats.
    pub(crate) fn values(&self, layer: usize, kv_head: usize) -> usize {
        self.keys(layer, kv_head) + self.plane_len
    }

    /// Offset in the pool, in floats, of the vector of token `index` (block * BLOCK_TOKENS +
    /// token); `plane` is [`KvShape::keys`] or [`KvShape::values`].
    pub(crate) fn token(&self, index: usize, plane: usize) -> usize {
        index / BLOCK_TOKENS * self.block_len + plane + index % BLOCK_TOKENS * self.head_dim
    }
}

impl KvPool {
    /// Allocates `num_blocks` zeroed blocks.
    pub(crate) fn new(config: &ModelConfig, num_blocks: usize) -> Result<Self, String> {
        let shape = KvShape::new(config);
        // The last vector load of the last value may read beyond the end.
        let data = Aligned::zeroed(num_blocks * shape.block_len + MAX_LANES)?;
        Ok(KvPool { data, num_blocks, shape })
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Size of a block, bytes.
    pub fn block_bytes(&self) -> usize {
        self.shape.block_len * size_of::<f32>()
    }

    /// The contents of `block`: `[layer][K|V][kv head][BLOCK_TOKENS][head_dim]`.
    pub fn block(&self, block: u32) -> &[f32] {
        &self.data[block as usize * self.shape.block_len..][..self.shape.block_len]
    }

    /// The contents of `block`, writable: for a block that is swapped in.
    pub fn block_mut(&mut self, block: u32) -> &mut [f32] {
        &mut self.data[block as usize * self.shape.block_len..][..self.shape.block_len]
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// All blocks, and padding for one vector load.
    pub(crate) fn data(&self) -> &[f32] {
        &self.data
    }

    /// All blocks and padding, writable.
    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }
}
