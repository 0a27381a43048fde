//! Paged KV pool: keys and values of all layers in blocks of [`BLOCK_TOKENS`] tokens.

use std::hint::black_box;
use std::ops::Range;

use crate::backend::BLOCK_TOKENS;
use crate::model::{Dtype, ModelConfig};

use super::Pool;
use super::simd::MAX_LANES;
use trail_cpu_kernels::Aligned;

/// Remedy for KV blocks that find no memory.
pub(super) const FEWER_BLOCKS: &str = "lower --kv-blocks or --max-running";

/// Least size of the default pool, bytes: a start with less memory fails for other reasons first.
const LEAST_KV_BYTES: u64 = 64 << 20;

/// The smallest page of any system.
const PAGE_BYTES: usize = 4096;

/// `[block][layer][K|V][kv head][BLOCK_TOKENS][head_dim]`, in f32, f16, bf16 or Q8_0; of the layers
/// with attention.
///
/// All layers of a block are contiguous, so that swapping a block is one copy.
pub struct KvPool {
    data: Aligned,
    num_blocks: usize,
    shape: KvShape,
    /// True for blocks that have their place `[num_blocks]`.
    placed: Vec<bool>,
    /// Blocks that get one in this step.
    new: Vec<u32>,
}

/// Type of the values, and strides within the pool, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    pub(crate) dtype: Dtype,
    /// Bytes of a block.
    pub(crate) block_bytes: usize,
    /// Bytes of one layer's keys (or values) in a block.
    plane_bytes: usize,
    /// Bytes of one head's keys (or values) in a block.
    head_bytes: usize,
}

impl KvShape {
    fn new(config: &ModelConfig, dtype: Dtype) -> Self {
        let head_bytes = dtype.bytes_of(BLOCK_TOKENS * config.head_dim);
        let plane_bytes = config.num_kv_heads * head_bytes;
        let block_bytes = config.kv_layers() * 2 * plane_bytes;
        KvShape { dtype, block_bytes, plane_bytes, head_bytes }
    }

    /// Offset in a block of a layer's and head's keys, in bytes; `layer` is its
    /// [place](ModelConfig::kv_layer) among those with attention.
    pub(crate) fn keys(&self, layer: usize, kv_head: usize) -> usize {
        layer * 2 * self.plane_bytes + kv_head * self.head_bytes
    }

    /// Offset in a block of a layer's and head's values, in bytes.
    pub(crate) fn values(&self, layer: usize, kv_head: usize) -> usize {
        self.keys(layer, kv_head) + self.plane_bytes
    }

    /// Range in the pool, in bytes, of the vector of token `index` (block * BLOCK_TOKENS + token);
    /// `plane` is [`KvShape::keys`] or [`KvShape::values`].
    pub(crate) fn token(&self, index: usize, plane: usize) -> Range<usize> {
        let bytes = self.head_bytes / BLOCK_TOKENS;
        let block = index / BLOCK_TOKENS * self.block_bytes;
        let first = block + plane + index % BLOCK_TOKENS * bytes;
        first..first + bytes
    }
}

impl KvPool {
    /// Reserves `num_blocks` zeroed blocks of `dtype`, one of [`KvPool::DTYPES`]. A block takes
    /// memory when it is first written.
    pub(crate) fn new(
        config: &ModelConfig,
        num_blocks: usize,
        dtype: Dtype,
    ) -> Result<Self, String> {
        if !KvPool::DTYPES.contains(&dtype) {
            return Err(format!("keys and values are f32, f16, bf16 or q8_0, not {dtype}"));
        }
        let (values, width) = (dtype.block_values(), config.head_dim);
        if !width.is_multiple_of(values) {
            return Err(format!(
                "--kv-dtype {}: it has blocks of {values} values, the model's heads have {width}; \
                 choose f16",
                dtype.to_string().to_lowercase()
            ));
        }
        let shape = KvShape::new(config, dtype);
        // The last vector load of the last value may read beyond the end.
        let floats = num_blocks.saturating_mul(shape.block_bytes).div_ceil(size_of::<f32>());
        let data = Aligned::reserved(floats.saturating_add(MAX_LANES))
            .map_err(|error| format!("{num_blocks} KV blocks: {error}; {FEWER_BLOCKS}"))?;
        let (placed, new) = (vec![false; num_blocks], Vec::with_capacity(num_blocks));
        Ok(KvPool { data, num_blocks, shape, placed, new })
    }

    /// Touches those of `blocks` that no step had yet, one from a CPU of each NUMA node in turn,
    /// so that the contexts use the memory of all nodes. Without it that would be the node of the
    /// first head: all heads of a block share its pages.
    pub(super) fn place(&mut self, blocks: &[u32], pool: &Pool) {
        let nodes = pool.nodes();
        if nodes == 1 {
            return;
        }
        self.new.clear();
        for &block in blocks {
            if !std::mem::replace(&mut self.placed[block as usize], true) {
                self.new.push(block);
            }
        }
        if self.new.is_empty() {
            return;
        }
        let bytes = self.shape.block_bytes;
        let data: &mut [u8] = bytemuck::cast_slice_mut(&mut self.data);
        let new = &self.new;
        pool.on_each_node(|node| {
            for &block in new.iter().filter(|&&block| block as usize % nodes == node) {
                for page in data[block as usize * bytes..][..bytes].chunks_mut(PAGE_BYTES) {
                    // Its contents stay: a block may have been swapped in.
                    page[0] = black_box(page[0]);
                }
            }
        });
    }

    /// Types of keys and values.
    pub const DTYPES: [Dtype; 4] = trail_cpu_kernels::KV_DTYPES;

    /// The type of keys and values called `name`.
    pub fn parse_dtype(name: &str) -> Result<Dtype, String> {
        let of_name = |dtype: &Dtype| dtype.to_string().eq_ignore_ascii_case(name);
        let found = KvPool::DTYPES.into_iter().find(of_name);
        found.ok_or_else(|| "choose f32, f16, bf16 or q8_0".into())
    }

    /// Default number of blocks of `block_bytes`: those of `max_running` sequences at their
    /// longest, and half as many again for paused ones, within half of `available_bytes`. The other
    /// half is for requests, other programs, and the page cache.
    pub fn default_blocks(
        config: &ModelConfig,
        max_running: usize,
        available_bytes: u64,
        block_bytes: usize,
    ) -> usize {
        let wanted = config.max_context.div_ceil(BLOCK_TOKENS) * max_running * 3 / 2;
        let bytes = (available_bytes / 2).max(LEAST_KV_BYTES);
        wanted.min((bytes / block_bytes as u64) as usize).max(1)
    }

    /// Size of a block of `dtype`, bytes.
    pub fn bytes_of_block(config: &ModelConfig, dtype: Dtype) -> usize {
        KvShape::new(config, dtype).block_bytes
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Size of a block, bytes.
    pub fn block_bytes(&self) -> usize {
        self.shape.block_bytes
    }

    /// The contents of `block`: `[layer][K|V][kv head][BLOCK_TOKENS][head_dim]`.
    pub fn block(&self, block: u32) -> &[u8] {
        &self.data()[block as usize * self.shape.block_bytes..][..self.shape.block_bytes]
    }

    /// The contents of `block`, writable: for a block that is swapped in.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let bytes = self.shape.block_bytes;
        &mut self.data_mut()[block as usize * bytes..][..bytes]
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// All blocks, and padding for one vector load.
    pub(crate) fn data(&self) -> &[u8] {
        bytemuck::cast_slice(&self.data)
    }

    /// All blocks and padding, writable.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.data)
    }
}

#[cfg(test)]
mod tests {
    use trail_platform::Cpu;

    use super::*;

    #[test]
    fn the_default_is_what_sequences_need_within_half_of_the_memory() {
        let config = ModelConfig::named("llama3-8b").expect("a known shape");
        // 8192 tokens take 512 blocks of 4 MiB.
        assert_eq!(KvPool::bytes_of_block(&config, Dtype::F32), 4 << 20);
        let of =
            |available_gib: u64| KvPool::default_blocks(&config, 8, available_gib << 30, 4 << 20);
        assert_eq!(of(100), 8 * 512 * 3 / 2);
        assert_eq!(of(20), 10 * 256);
        assert_eq!(of(0), 16, "64 MiB");
        assert_eq!(KvPool::default_blocks(&config, 8, 20 << 30, 2 << 20), 10 * 512);
    }

    #[test]
    fn blocks_are_placed_once_and_keep_their_contents() {
        let config = ModelConfig::named("demo").expect("a known shape");
        let mut kv = KvPool::new(&config, 5, Dtype::F32).unwrap();
        let cpu = super::super::placement(1).map_or(0, |cpus| cpus[0].id);
        let cpus = [0, 1].map(|node| Cpu { id: cpu, core: cpu, node });
        let nodes = Pool::start(2, cpus.to_vec()).unwrap();
        kv.block_mut(3).fill(7);
        kv.place(&[3, 1, 3], &nodes);
        assert_eq!(kv.new, [3, 1]);
        assert!(kv.block(3).iter().all(|&byte| byte == 7));
        kv.place(&[1, 4], &nodes);
        assert_eq!(
            (&kv.new[..], &kv.placed[..]),
            (&[4][..], &[false, true, false, true, true][..])
        );
        kv.place(&[0], &Pool::new(2).unwrap());
        assert!(!kv.placed[0], "one node");
    }

    #[test]
    fn a_pool_beyond_the_address_space_names_the_options() {
        let config = ModelConfig::named("llama3-8b").expect("a known shape");
        let error = KvPool::new(&config, 1 << 27, Dtype::F32).err().expect("512 TiB");
        assert!(error.contains("134217728 KV blocks") && error.contains("--kv-blocks"), "{error}");
        let error = KvPool::new(&config, 1, Dtype::Q4_0).err().expect("no such type");
        assert!(error.contains("f32, f16, bf16 or q8_0"), "{error}");
        let narrow = ModelConfig { head_dim: 80, ..config };
        let error = KvPool::new(&narrow, 1, Dtype::Q8_0).err().expect("a part of a block");
        assert!(error.contains("the model's heads have 80; choose f16"), "{error}");
    }
}
