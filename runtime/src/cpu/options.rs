//! The options of the CPU backend, and the memory that they take.

use trail_platform::{Isa, Memory};

use crate::backend::{BLOCK_TOKENS, MAX_DRAFT_TOKENS, MAX_STATE_DRAFTS};
use crate::model::{Dtype, ModelConfig};

use super::compute::Compute;
use super::delta_net::DeltaBuffers;
use super::kv::FEWER_BLOCKS;
use trail_cpu_kernels::{Softmax, partitions};

/// Work items of a thread below which tasks of attention are split, for load balance.
pub(super) const ITEMS_PER_THREAD: usize = 4;

/// Memory of recurrent states that are kept at the ends of KV blocks, bytes, and their number.
const SNAPSHOT_BYTES: usize = 512 << 20;
const MIN_SNAPSHOTS: usize = 4;
const MAX_SNAPSHOTS: usize = 64;

/// Configuration of a [`CpuForward`](super::CpuForward), fixed at construction.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Number of threads, including the caller of `forward`; at least 1.
    pub threads: usize,
    /// True to pin each thread to its own CPU: see [`placement`](super::placement).
    pub pin: bool,
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Arithmetic of products with quantized and with bf16 weights.
    pub compute: Compute,
    /// True to copy quantized weights into the order in which products read them: faster, for as
    /// much memory as they take in the file. Needs [`Compute::Fast`].
    pub repack: bool,
    /// Maximum number of rows (tokens) in a batch.
    pub max_rows: usize,
    /// Maximum number of segments in a batch.
    pub max_segments: usize,
    /// Type of keys and values: f32, f16, bf16 or Q8_0.
    pub kv_dtype: Dtype,
    /// Number of KV blocks, of [`BLOCK_TOKENS`] tokens each.
    pub num_blocks: usize,
    /// Maximum context length, tokens.
    pub max_context: usize,
}

impl CpuOptions {
    /// Bytes of the KV pool, the activations and the rotations for a model of `config`.
    pub fn bytes(&self, config: &ModelConfig) -> u128 {
        let kv = BLOCK_TOKENS * config.kv_token_bytes(self.kv_dtype);
        let streams = if config.architecture.has_post_norms() { 3 } else { 2 };
        let normed = config.mlp_input_rows() * config.hidden_size;
        let inner = config.inner_shapes().into_iter().map(|(rows, len)| rows * len).max();
        let inner = inner.unwrap_or(0);
        let attended = config.attended_size();
        let hybrid = DeltaBuffers::row_len(config);
        let row = (streams - 1) * config.hidden_size
            + normed
            + config.q_size()
            + attended
            + inner
            + hybrid;
        let widest = inner.max(attended).max(normed);
        let narrow = match self.compute {
            Compute::Exact => 0,
            // Activations in 8 bits take 11 words per 32 values, those in bf16 take 16.
            Compute::Fast => widest / 32 * (11 + 16),
        };
        let row = row + narrow;
        let activations = self.max_rows as u128 * row as u128
            + self.max_sampled() as u128 * (config.vocab_size + config.hidden_size) as u128;
        let rope = self.max_context as u128
            * (config.rotary_dim() * (1 + usize::from(config.local_rope.is_some()))) as u128;
        let partials = self.partial_floats(config) as u128;
        let floats = activations + rope + partials + self.state_floats(config);
        self.num_blocks as u128 * kv as u128 + floats * size_of::<f32>() as u128
    }

    /// Recurrent states for a model of `config`: one for each request of a step, and as many that
    /// paused requests keep or that a request begins with; those of draft tokens, and those at the
    /// ends of KV blocks. 0 without gated delta nets.
    pub(super) fn num_states(&self, config: &ModelConfig) -> usize {
        let Some(net) = &config.delta_net else { return 0 };
        let bytes = net.state_len() * size_of::<f32>();
        let snapshots = (SNAPSHOT_BYTES / bytes.max(1)).clamp(MIN_SNAPSHOTS, MAX_SNAPSHOTS);
        2 * self.max_segments + MAX_STATE_DRAFTS + snapshots
    }

    /// Floats of all recurrent states.
    fn state_floats(&self, config: &ModelConfig) -> u128 {
        let len = config.delta_net.as_ref().map_or(0, |net| net.state_len());
        self.num_states(config) as u128 * len as u128
    }

    /// Bytes of all recurrent states for a model of `config`.
    pub fn state_bytes(&self, config: &ModelConfig) -> u128 {
        self.state_floats(config) * size_of::<f32>() as u128
    }

    /// Refuses what would take more than the memory that is available beside `others` bytes: the
    /// system would end the process, at once or when the last block is used.
    pub fn check_memory(
        &self,
        config: &ModelConfig,
        others: u128,
        memory: Option<Memory>,
    ) -> Result<(), String> {
        let needed = others + self.bytes(config);
        let available = memory.map(|memory| memory.available_bytes);
        match available {
            Some(available) if needed > u128::from(available) => Err(format!(
                "{} KV blocks and {} rows a step need {} MiB, {} MiB of memory are available: \
                 {FEWER_BLOCKS}, or --token-budget",
                self.num_blocks,
                self.max_rows,
                needed >> 20,
                available >> 20
            )),
            _ => Ok(()),
        }
    }

    /// Most rows of a batch whose logits are sampled.
    pub fn max_sampled(&self) -> usize {
        self.max_segments + MAX_DRAFT_TOKENS
    }

    /// Most splits of a step, each of one KV head.
    pub(super) fn max_splits(&self) -> usize {
        let longest = partitions(0, self.max_context.max(1) - 1, usize::MAX);
        if self.threads > 1 { ITEMS_PER_THREAD * self.threads * longest.len() } else { 0 }
    }

    /// Floats of the partial sums of a step, at most.
    pub(super) fn partial_floats(&self, config: &ModelConfig) -> usize {
        let group = config.num_heads / config.num_kv_heads.max(1);
        self.max_splits() * group * Softmax::stored_len(config.head_dim)
    }
}
