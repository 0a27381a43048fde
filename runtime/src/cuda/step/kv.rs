//! The KV pool: one allocation, as large as is left, or as asked.

use crate::batch::BLOCK_TOKENS;
use crate::cuda::{CudaError, Device, DeviceBuffer};
use crate::model::ModelConfig;

/// What is left free for graphs and for the driver, bytes; on a small device a sixteenth of what is free.
const RESERVE: usize = 512 << 20;

const HELP: &str = "lower --token-budget, --slots or --max-context, or ask for fewer KV blocks";

/// Keys and values `[block][layer][K|V][kv head][16 tokens][head_dim]` bf16.
pub(in crate::cuda) struct KvPool {
    pub(in crate::cuda) pool: DeviceBuffer,
    /// Blocks.
    pub(in crate::cuda) blocks: usize,
    /// Bytes of a block.
    pub(in crate::cuda) block_bytes: usize,
    /// Elements from one layer to the next within a block.
    pub(super) layer_stride: usize,
}

impl KvPool {
    /// A pool of `blocks` blocks; `None`: of as many as there is room for. Allocated last.
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        blocks: Option<usize>,
    ) -> Result<KvPool, CudaError> {
        let layer_stride = 2 * config.kv_size() * BLOCK_TOKENS;
        let block_bytes = config.num_layers * layer_stride * 2;
        let blocks = match blocks {
            Some(blocks) => blocks,
            None => {
                let free = device.free_bytes()?;
                free.saturating_sub(RESERVE.min(free / 16)) / block_bytes
            }
        };
        // Without room for a single block the allocation says what is missing.
        let blocks = blocks.max(1);
        // What a block's last tokens hold before they are written is read, and weighed with zero: it must be finite.
        let pool = device.alloc_zeros(blocks * block_bytes, "the KV cache");
        let pool = pool.map_err(|error| error.or_try(HELP))?;
        Ok(KvPool { pool, blocks, block_bytes, layer_stride })
    }
}
