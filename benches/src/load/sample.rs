//! Compares a sample of the weights on the device with the file.

use std::error::Error;

use cudarc::driver::result;
use half::bf16;
use trail_platform::Rng;
use trail_ptx::DevicePtr;
use trail_runtime::cuda::DeviceWeights;
use trail_runtime::cuda::params;
use trail_runtime::cuda::plan::shuffle::WIDTH;
use trail_runtime::model::{Model, Tensor};

/// Weights compared in each matrix.
const SAMPLES: usize = 16;

/// Maps a row of a source matrix to a row of the product that contains it.
type Place<'a> = &'a dyn Fn(usize) -> usize;

/// Compares randomly drawn weights of every matrix. Returns how many were compared.
pub fn check(model: &Model, weights: &DeviceWeights) -> Result<usize, Box<dyn Error>> {
    let config = &model.config;
    let (head, q, kv) = (config.head_dim, config.q_size(), config.kv_size());
    // RoPE pairs of a head are stored eight rows apart.
    let paired = |row: usize| {
        let (within, half) = (row % head % (head / 2), row % head / (head / 2));
        row / head * head + within / 8 * 16 + half * 8 + within % 8
    };
    let gate = |row: usize| row / 8 * 16 + row % 8;
    let mut sample = Sample { draw: Rng::new(1), checked: 0 };
    sample.rows(&model.weights.embed, weights.embed)?;
    sample.fragments(&model.weights.lm_head, weights.lm_head, &|row| row)?;
    for (layer, at) in model.weights.layers.iter().zip(&weights.layers) {
        let mlp = layer.mlp.dense().ok_or("a mixture is not on the device")?;
        let matrices: [(&Tensor, DevicePtr<params::bf16>, Place); 7] = [
            (&layer.q, at.qkv, &paired),
            (&layer.k, at.qkv, &|row| paired(q + row)),
            (&layer.v, at.qkv, &|row| paired(q + kv + row)),
            (&layer.o, at.o, &|row| row),
            (&mlp.gate, at.gate_up, &gate),
            (&mlp.up, at.gate_up, &|row| gate(row) + 8),
            (&mlp.down, at.down, &|row| row),
        ];
        for (tensor, at, place) in matrices {
            sample.fragments(tensor, at, place)?;
        }
    }
    Ok(sample.checked)
}

struct Sample {
    draw: Rng,
    checked: usize,
}

impl Sample {
    /// Compares weights of a row-major matrix.
    fn rows(&mut self, tensor: &Tensor, at: DevicePtr<params::bf16>) -> Result<(), Box<dyn Error>> {
        self.compare(tensor, at, |row, column| row * tensor.cols + column)
    }

    /// Compares weights of a matrix in mma fragment order.
    fn fragments(
        &mut self,
        tensor: &Tensor,
        at: DevicePtr<params::bf16>,
        place: Place,
    ) -> Result<(), Box<dyn Error>> {
        let width = tensor.cols.next_multiple_of(WIDTH);
        self.compare(tensor, at, |row, column| {
            let row = place(row);
            let lane = row % 8 * 4 + column % 8 / 2;
            let element = column % 2 + row % 16 / 8 * 2 + column % 16 / 8 * 4;
            row / 16 * 16 * width + column / 16 * 256 + lane * 8 + element
        })
    }

    /// Compares elements with the device's; `index` maps (row, column) to an offset in elements.
    fn compare(
        &mut self,
        tensor: &Tensor,
        at: DevicePtr<params::bf16>,
        index: impl Fn(usize, usize) -> usize,
    ) -> Result<(), Box<dyn Error>> {
        for _ in 0..SAMPLES {
            let mut below = |size: usize| self.draw.below(size as u64) as usize;
            let (row, column) = (below(tensor.rows), below(tensor.cols));
            let mut found = [0_u16];
            // SAFETY: the element lies within the matrix; the load has ended.
            unsafe { result::memcpy_dtoh_sync(&mut found, at.add(index(row, column)).address())? };
            let wanted = element(tensor, row, column).to_bits();
            if found[0] != wanted {
                let [found] = found;
                return Err(format!(
                    "{tensor:?} [{row}, {column}]: {found:#x} arrived, not {wanted:#x}"
                )
                .into());
            }
            self.checked += 1;
        }
        Ok(())
    }
}

/// One weight of the file, rounded to bf16 as the upload does.
fn element(tensor: &Tensor, row: usize, column: usize) -> bf16 {
    let dtype = tensor.dtype;
    let first = column - column % dtype.block_values();
    let block = &tensor.row_bytes(row)[dtype.bytes_of(first)..][..dtype.block_bytes()];
    let mut values = vec![0.0; dtype.block_values()];
    dtype.widen(block, &mut values);
    bf16::from_f32(values[column - first])
}
