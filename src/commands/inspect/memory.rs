//! Memory that a model takes.

use serde::Serialize;
use trail_cli::{CpuArgs, size};
use trail_runtime::cuda;
use trail_runtime::model::{Dtype, ModelConfig, TensorInfo};
use trail_scheduler::BLOCK_TOKENS;

/// Weights and KV cache of a batch at a context, with the recurrent states of a hybrid, bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryNeed {
    batch: usize,
    context: usize,
    /// As stored.
    weights_bytes: u64,
    cpu: DeviceNeed,
    gpu: DeviceNeed,
}

/// Weights and KV cache on one device: the CPU takes matrices as stored, and has keys and values of
/// `--kv-dtype`, and with `--repack` a copy of the quantized ones; on a GPU both are bf16, and a
/// tied output projection is a copy of the embedding.
#[derive(Clone, Copy, Debug, Serialize)]
struct DeviceNeed {
    weights_bytes: u64,
    kv_token_bytes: u64,
    total_bytes: u64,
}

impl MemoryNeed {
    /// The need of `batch` sequences of `context` tokens, with the options of the CPU.
    pub fn of(
        config: &ModelConfig,
        tensors: &[TensorInfo],
        batch: usize,
        context: usize,
        options: CpuArgs,
    ) -> MemoryNeed {
        let tokens = context.next_multiple_of(BLOCK_TOKENS as usize) as u64 * batch as u64;
        let state_len = config.delta_net.as_ref().map_or(0, |net| net.state_len());
        let state_bytes = (batch as u64).saturating_mul((state_len * size_of::<f32>()) as u64);
        let device = |weights_bytes, dtype| {
            let kv_token_bytes = config.kv_token_bytes(dtype) as u64;
            let kv_bytes = tokens.saturating_mul(kv_token_bytes);
            let total_bytes = kv_bytes.saturating_add(weights_bytes).saturating_add(state_bytes);
            DeviceNeed { weights_bytes, kv_token_bytes, total_bytes }
        };
        let weights_bytes = tensors.iter().map(|tensor| tensor.bytes as u64).sum();
        // Lookups in the embedding table read it as stored; a tied output projection is repacked.
        let copied = |tensor: &&TensorInfo| {
            tensor.dtype.is_quantized() && (tensor.name != "embed" || config.tie_word_embeddings)
        };
        let copies = tensors.iter().filter(|_| options.repack).filter(copied);
        let copies: u64 = copies.map(|tensor| tensor.bytes as u64).sum();
        let cpu = device(weights_bytes + copies, options.kv_dtype.unwrap_or(Dtype::F32));
        let gpu = device(cuda::weights_bytes(config) as u64, Dtype::Bf16);
        MemoryNeed { batch, context, weights_bytes, cpu, gpu }
    }

    /// Names and values for a person.
    pub fn lines(&self) -> [(&'static str, String); 3] {
        let MemoryNeed { batch, context, .. } = self;
        let both = |of: fn(&DeviceNeed) -> u64| {
            format!("{} on the CPU, {} on a GPU", size(of(&self.cpu)), size(of(&self.gpu)))
        };
        [
            ("weights", both(|need| need.weights_bytes)),
            ("KV per token", both(|need| need.kv_token_bytes)),
            (
                "weights and KV",
                format!("{}, batch {batch} at {context} tokens", both(|need| need.total_bytes)),
            ),
        ]
    }
}
