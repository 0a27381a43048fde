//! The paged KV cache on the device: one allocation, block-major, so that a block is one run of
//! bytes.

use super::device::Device;
use super::error::CudaError;
use super::error::OutOfMemory;
use super::memory::DeviceBuffer;
use crate::backend::BLOCK_TOKENS;
use crate::model::{Dtype, ModelConfig};
use trail_ptx::DevicePtr;
use trail_ptx::params::bf16;

/// Advice of the error when there is no room for the cache.
const HELP: &str = "fewer --kv-blocks, a lower --token-budget, or a smaller model";
/// Kernels count blocks in signed 32-bit numbers.
const MAX_BLOCKS: usize = i32::MAX as usize;

/// Elements of a layer in a KV block.
pub(super) fn layer_stride(config: &ModelConfig) -> usize {
    2 * config.kv_size() * BLOCK_TOKENS
}

/// Left free for the driver, beside the graphs, when the pool takes the rest, bytes; on a small
/// device a sixteenth.
const RESERVE: usize = 512 << 20;

/// `[blocks][layer][K|V][kv head][16 tokens][head dim]` bf16, zeros at first: what a block's last
/// tokens hold before they are written is read and weighed with zero, so it must be finite. Where a
/// layer is tapped a block ends in the sums of its tokens' activations, `[hidden]` f32, so that
/// what shares or moves the block has them.
pub struct KvPool {
    memory: DeviceBuffer,
    block_bytes: usize,
    blocks: u32,
}

impl KvPool {
    /// A pool of `blocks`; by default as many as fit into what the device has free, less `reserve`
    /// bytes. Allocate everything else first.
    pub fn new(
        device: &Device,
        config: &ModelConfig,
        blocks: Option<usize>,
        reserve: usize,
    ) -> Result<KvPool, CudaError> {
        KvPool::of_blocks(device, block_bytes(config), blocks, reserve)
    }

    fn of_blocks(
        device: &Device,
        block_bytes: usize,
        blocks: Option<usize>,
        reserve: usize,
    ) -> Result<KvPool, CudaError> {
        let blocks = match blocks {
            Some(blocks) => blocks.clamp(1, MAX_BLOCKS),
            None => {
                let free = device.free_bytes()?;
                match (free.saturating_sub(reserve) / block_bytes).min(MAX_BLOCKS) {
                    0 => {
                        let needed = reserve + block_bytes;
                        let what = "one block of the KV cache and the reserve";
                        let refusal = OutOfMemory { what, needed, free: Some(free), help: HELP };
                        return Err(CudaError::OutOfMemory(refusal));
                    }
                    blocks => blocks,
                }
            }
        };
        let memory = device.alloc_zeros(blocks * block_bytes, "the KV cache");
        let memory = memory.map_err(|error| error.or_try(HELP))?;
        Ok(KvPool { memory, block_bytes, blocks: blocks as u32 })
    }

    /// A pool of `blocks`, with room for sums if a layer `is_tapped`; by default no more than
    /// `max`, and what fits beside `graph_bytes` of captured graphs and the driver's own memory.
    /// Allocate everything else first.
    pub(super) fn sized(
        device: &Device,
        config: &ModelConfig,
        is_tapped: bool,
        blocks: Option<usize>,
        max: usize,
        graph_bytes: usize,
    ) -> Result<KvPool, CudaError> {
        let block_bytes = block_bytes(config) + if is_tapped { sums_bytes(config) } else { 0 };
        let free = device.free_bytes()?;
        let reserve = RESERVE.min(free / 16) + graph_bytes.min(free / 2);
        let fit = free.saturating_sub(reserve) / block_bytes;
        let blocks = blocks.or_else(|| (fit > max).then_some(max));
        KvPool::of_blocks(device, block_bytes, blocks, reserve)
    }

    /// Address of its first element.
    pub fn device_ptr(&self) -> DevicePtr<bf16> {
        self.memory.device_ptr()
    }

    /// Where `block` begins.
    pub fn block_at(&self, block: u32) -> DevicePtr<bf16> {
        debug_assert!(block < self.blocks, "block {block} of {}", self.blocks);
        self.device_ptr().add(block as usize * self.block_bytes / size_of::<bf16>())
    }

    /// Elements from one block to the next.
    pub(super) fn block_stride(&self) -> i64 {
        (self.block_bytes / size_of::<bf16>()) as i64
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Blocks that it holds.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }
}

/// Bytes of the sums at the end of a block: whole rows of a head, in which Hopper's copy engine
/// counts.
fn sums_bytes(config: &ModelConfig) -> usize {
    let row_bytes = config.head_dim * size_of::<bf16>();
    (config.hidden_size * size_of::<f32>()).next_multiple_of(row_bytes)
}

/// Bytes of a block of the cache, without sums.
pub fn block_bytes(config: &ModelConfig) -> usize {
    BLOCK_TOKENS * config.kv_token_bytes(Dtype::Bf16)
}
