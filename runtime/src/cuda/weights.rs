//! The model's weights on the device.

use super::error::doing;
use super::launch::{self, RowOrder};
use super::plan::shuffle::{FEATURES, WIDTH};
use super::{CudaError, Device, DeviceBuffer, Priority, Progress};
use crate::model::{Dtype, Model, Tensor};
use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;
use half::bf16;
use std::sync::Arc;

/// Addresses of a block's matrices.
pub struct LayerAddresses {
    /// Queries, keys and values.
    pub qkv: CUdeviceptr,
    /// Output projection of attention.
    pub o: CUdeviceptr,
    /// Gate and up.
    pub gate_up: CUdeviceptr,
    /// Down projection.
    pub down: CUdeviceptr,
}

/// Weights in device memory.
pub struct DeviceWeights {
    /// `[vocab, d]`
    pub embed: CUdeviceptr,
    /// `[2 * layers + 1]`
    pub norms: Vec<CUdeviceptr>,
    /// Bottom up.
    pub layers: Vec<LayerAddresses>,
    /// `[vocab, d]`
    pub lm_head: CUdeviceptr,
    _memory: Vec<DeviceBuffer>,
}

impl DeviceWeights {
    /// Brings `model` to `device`.
    pub fn upload(
        device: &Arc<Device>,
        model: &Model,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<DeviceWeights, CudaError> {
        let mut memory = Vec::new();
        let w = &model.weights;
        let narrow = |values: &[f32]| -> Vec<u8> {
            values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
        };
        let mut put = |bytes: &[u8]| -> Result<CUdeviceptr, CudaError> {
            let buffer = device.alloc(bytes.len(), "the weights")?;
            // SAFETY: as large.
            unsafe { result::memcpy_htod_sync(buffer.at(), bytes) }.map_err(doing("weights"))?;
            memory.push(buffer);
            Ok(memory.last().map_or(0, DeviceBuffer::at))
        };
        let embed = put(&narrow(&w.embed.to_f32()))?;
        let mut norms = Vec::new();
        for layer in &w.layers {
            norms.push(put(&narrow(&layer.attention_norm))?);
            norms.push(put(&narrow(&layer.mlp_norm))?);
        }
        norms.push(put(&narrow(&w.norm))?);
        let stream = device.stream(Priority::Low)?;
        let mut shuffled = |sources: &[&Tensor], order| -> Result<CUdeviceptr, CudaError> {
            let rows: usize = sources.iter().map(|t| t.rows).sum();
            let width = sources[0].cols;
            let bytes = rows.next_multiple_of(FEATURES) * width.next_multiple_of(WIDTH) * 2;
            let to = put(&vec![0; bytes])?;
            let mut on = [(0, 0); 3];
            for (place, t) in on.iter_mut().zip(sources) {
                *place = (put(&narrow(&t.to_f32()))?, t.rows);
            }
            // SAFETY: extents as given.
            unsafe { launch::shuffle(device, &stream, Dtype::Bf16, on, width, order, to) }?;
            device.synchronize()?;
            Ok(to)
        };
        let mut layers = Vec::new();
        for l in &w.layers {
            let pairs = RowOrder::RotationPairs { head_dim: model.config.head_dim };
            layers.push(LayerAddresses {
                qkv: shuffled(&[&l.q, &l.k, &l.v], pairs)?,
                o: shuffled(&[&l.o], RowOrder::Plain)?,
                gate_up: shuffled(&[&l.gate, &l.up], RowOrder::Alternating)?,
                down: shuffled(&[&l.down], RowOrder::Plain)?,
            });
        }
        let lm_head = shuffled(&[&w.lm_head], RowOrder::Plain)?;
        Ok(DeviceWeights { embed, norms, layers, lm_head, _memory: memory })
    }
}
