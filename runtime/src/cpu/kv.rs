//! Paged KV pool: keys and values of all layers in blocks of [`BLOCK_TOKENS`] tokens.

use crate::backend::BLOCK_TOKENS;
use crate::model::ModelConfig;

use super::aligned::Aligned;
use super::simd::MAX_LANES;

/// Remedy for KV blocks that find no memory.
pub(super) const FEWER_BLOCKS: &str = "lower --kv-blocks or --max-running";

/// Least size of the default pool, bytes: a start with less memory fails for other reasons first.
const LEAST_KV_BYTES: u64 = 64 << 20;

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
    /// Reserves `num_blocks` zeroed blocks. A block takes memory when it is first written.
    pub(crate) fn new(config: &ModelConfig, num_blocks: usize) -> Result<Self, String> {
        let shape = KvShape::new(config);
        // The last vector load of the last value may read beyond the end.
        let data = Aligned::reserved(num_blocks * shape.block_len + MAX_LANES)
            .map_err(|error| format!("{num_blocks} KV blocks: {error}; {FEWER_BLOCKS}"))?;
        Ok(KvPool { data, num_blocks, shape })
    }

    /// Default number of blocks: those of `max_running` sequences at their longest, and half as
    /// many again for paused ones, within half of `available_bytes`. The other half is for
    /// requests, other programs, and the page cache.
    pub fn default_blocks(config: &ModelConfig, max_running: usize, available_bytes: u64) -> usize {
        let block_bytes = KvShape::new(config).block_len * size_of::<f32>();
        let wanted = config.max_context.div_ceil(BLOCK_TOKENS) * max_running * 3 / 2;
        let bytes = (available_bytes / 2).max(LEAST_KV_BYTES);
        wanted.min((bytes / block_bytes as u64) as usize).max(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_sequences_need_within_half_of_the_memory() {
        let config = ModelConfig::named("llama3-8b").expect("a known shape");
        // 8192 tokens take 512 blocks of 4 MiB.
        let of = |available_gib: u64| KvPool::default_blocks(&config, 8, available_gib << 30);
        assert_eq!(of(100), 8 * 512 * 3 / 2);
        assert_eq!(of(20), 10 * 256);
        assert_eq!(of(0), 16, "64 MiB");
    }

    #[test]
    fn a_pool_beyond_the_address_space_names_the_options() {
        let config = ModelConfig::named("llama3-8b").expect("a known shape");
        let error = KvPool::new(&config, 1 << 27).err().expect("512 TiB");
        assert!(error.contains("134217728 KV blocks") && error.contains("--kv-blocks"), "{error}");
    }
}
