//! The model's weights on the device: read from their mapped files by a pool of threads, brought
//! into the kernels' order on the device.
//!
//! `layout` says where everything goes in one allocation, `chunks` cuts the matrices into
//! chunks that fit a staging buffer, and `upload` uploads them: pinned buffer, copy, shuffle.
//! Whatever the file holds, what arrives is bf16, rounded to nearest even: matrices (a bf16 file
//! loses nothing), the embedding table, and the norms' weights.

mod chunks;
mod layout;
mod supported;
mod upload;

use super::device::Device;
use super::error::CudaError;
use super::kv::block_bytes;
use super::launch::{self, RowOrder};
use super::memory::DeviceBuffer;
use crate::backend::Progress;
use crate::model::{Dtype, Model, ModelConfig};
use layout::Layout;
use std::sync::Arc;
use trail_ptx::DevicePtr;
use trail_ptx::params::{HeadTerms, bf16};

pub use supported::check_supported;
pub use upload::UploadPool;

/// Weights in device memory, each where the kernels want it; freed with this.
pub struct DeviceWeights {
    /// Token embeddings `[vocab, d]` bf16, row-major.
    pub embed: DevicePtr<bf16>,
    /// `[2 * layers + 1]` norms, `[d]` bf16 each: attention's and the MLP's of each layer, then the
    /// last.
    pub norms: Vec<DevicePtr<bf16>>,
    /// The blocks, bottom up.
    pub layers: Vec<LayerAddresses>,
    /// Output projection `[vocab, d]`, in fragment order; its own copy where the file has none.
    pub lm_head: DevicePtr<bf16>,
    /// Bytes of device memory that all of it takes.
    pub bytes: usize,
    _memory: DeviceBuffer,
}

/// One block's matrices, bf16 in fragment order `[rows padded to 128, width padded to 256]`.
#[derive(Clone, Copy, Debug)]
pub struct LayerAddresses {
    /// Queries, keys and values stacked, in rotation pairs: `[q + 2 kv, d]`.
    pub qkv: DevicePtr<bf16>,
    /// Output projection of attention: `[d, q]`.
    pub o: DevicePtr<bf16>,
    /// Gate and up, eight rows of each in turn: `[2 ff, d]`.
    pub gate_up: DevicePtr<bf16>,
    /// Down projection: `[d, ff]`.
    pub down: DevicePtr<bf16>,
    /// Bias and norms of the heads, where the family has them.
    pub terms: HeadTerms,
}

/// Bytes of device memory that the weights of a model take.
pub fn device_bytes(config: &ModelConfig) -> usize {
    Layout::of(config).bytes
}

impl DeviceWeights {
    /// Refuses a device whose free memory is less than the weights and one KV block.
    pub(super) fn check_room(device: &Device, config: &ModelConfig) -> Result<(), CudaError> {
        let (needed, free) = (device_bytes(config) + block_bytes(config), device.free_bytes()?);
        match needed > free {
            true => Err(CudaError::Unusable(format!(
                "the GPU has {} MiB free, and the model's weights with one KV block take {} MiB: \
                 free it of other programs, or choose a smaller model",
                free >> 20,
                needed.div_ceil(1 << 20)
            ))),
            false => Ok(()),
        }
    }

    /// Brings `model` to `device`; `progress` is called with the bytes uploaded so far.
    pub fn upload(
        device: &Arc<Device>,
        model: &Model,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<DeviceWeights, CudaError> {
        DeviceWeights::upload_by(device, model, UploadPool::default(), progress)
    }

    /// The same with a given pool.
    pub fn upload_by(
        device: &Arc<Device>,
        model: &Model,
        pool: UploadPool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<DeviceWeights, CudaError> {
        check_supported(&model.config)?;
        let layout = Layout::of(&model.config);
        let memory = device.alloc(layout.bytes, "the weights").map_err(|error| {
            error.or_try("run a smaller model, free the device of other programs, or --device cpu")
        })?;
        let weights = DeviceWeights::placed(&layout, memory);
        let chunks = chunks::cut(model, &weights, pool.buffer_bytes);
        upload::upload(device, &chunks, pool, progress)?;
        if model.config.tie_word_embeddings {
            weights.shuffle_embedding(device, model)?;
        }
        Ok(weights)
    }

    /// The addresses of `layout` in `memory`.
    fn placed(layout: &Layout, memory: DeviceBuffer) -> DeviceWeights {
        let at = |offset: &usize| memory.device_ptr::<u8>().add(*offset).cast();
        let terms = |layer: usize| match layout.terms.get(layer) {
            None => HeadTerms::default(),
            Some([bias, q_norm, k_norm]) => HeadTerms {
                bias: bias.as_ref().map_or(DevicePtr::NULL, at),
                q_norm: q_norm.as_ref().map_or(DevicePtr::NULL, at),
                k_norm: k_norm.as_ref().map_or(DevicePtr::NULL, at),
            },
        };
        let layer = |(index, [qkv, o, gate_up, down]): (usize, &[usize; 4])| LayerAddresses {
            qkv: at(qkv),
            o: at(o),
            gate_up: at(gate_up),
            down: at(down),
            terms: terms(index),
        };
        DeviceWeights {
            embed: at(&layout.embed),
            norms: layout.norms.iter().map(at).collect(),
            layers: layout.layers.iter().enumerate().map(layer).collect(),
            lm_head: at(&layout.lm_head),
            bytes: layout.bytes,
            _memory: memory,
        }
    }

    /// The output projection of a model that shares it with the embedding: shuffled on the device,
    /// from what arrived there.
    fn shuffle_embedding(&self, device: &Arc<Device>, model: &Model) -> Result<(), CudaError> {
        let (vocab, d) = (model.config.vocab_size, model.config.hidden_size);
        let queue = upload::queue(device)?;
        let sources = [(self.embed.cast(), vocab), Default::default(), Default::default()];
        let launch = launch::shuffle(Dtype::Bf16, sources, d, RowOrder::Plain, self.lm_head);
        queue.launch(&launch)?;
        queue.synchronize("waiting for the output projection")
    }
}
