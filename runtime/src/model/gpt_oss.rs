//! Loading the experts of gpt-oss, whose checkpoints store those of a layer in one tensor.
//!
//! In Hugging Face's checkpoints gate and up projection alternate, row by row, and weights are
//! either MXFP4 in another order of nibbles than ggml's, or floats with rows and columns exchanged:
//! both are copied into memory. The tensors of GGUF files are used in place.

use std::iter::StepBy;
use std::ops::Range;

use trail_platform::Memory;

use super::archive::{Archive, RawTensor};
use super::error::LoadError;
use super::mlp::stack_f32;
use super::quantized::{check_copies, copy_tiles, take};
use super::{Dtype, GatedMlp, Mixture, MixtureConfig, MlpBias, ModelConfig, Tensor};

/// Loads the experts of layer `index`.
pub(super) fn load(
    config: &ModelConfig,
    mixture: &MixtureConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Mixture, LoadError> {
    let (hidden, experts) = (config.hidden_size, mixture.num_experts);
    if index == 0 && !archive.is_gguf() {
        check_copies(archive, archive.bytes_in(".mlp.experts."), Memory::read())?;
    }
    let layer = format!("model.layers.{index}.mlp");
    let router = archive.matrix(&format!("{layer}.router.weight"), experts, hidden)?;
    let router_bias = Some(archive.vector(&format!("{layer}.router.bias"), experts)?);
    let mut loader = Loader { archive, layer, experts, hidden, inner: mixture.expert_size };
    let experts = if loader.archive.is_gguf() { loader.gguf()? } else { loader.hugging_face()? };
    let router = stack_f32(&[router]).expect("a matrix");
    Ok(Mixture { router, router_bias, experts, shared: None })
}

/// The experts of one layer, and their sizes.
struct Loader<'a> {
    archive: &'a mut Archive,
    /// Name of the MLP.
    layer: String,
    experts: usize,
    hidden: usize,
    inner: usize,
}

impl Loader<'_> {
    /// The experts of a GGUF file.
    fn gguf(&mut self) -> Result<Vec<GatedMlp>, LoadError> {
        let (hidden, inner) = (self.hidden, self.inner);
        let (gates, gate_biases) = self.projection("gate_proj", inner, hidden)?;
        let (ups, up_biases) = self.projection("up_proj", inner, hidden)?;
        let (downs, down_biases) = self.projection("down_proj", hidden, inner)?;
        let row =
            |biases: &[f32], expert: usize, len: usize| biases[expert * len..][..len].to_vec();
        let expert = |index: usize| GatedMlp {
            gate: gates[index].clone(),
            up: ups[index].clone(),
            down: downs[index].clone(),
            bias: Some(MlpBias {
                gate: row(&gate_biases, index, inner),
                up: row(&up_biases, index, inner),
                down: row(&down_biases, index, hidden),
            }),
        };
        Ok((0..self.experts).map(expert).collect())
    }

    /// A projection of all experts, and their biases `[experts * rows]`.
    fn projection(
        &mut self,
        part: &str,
        rows: usize,
        cols: usize,
    ) -> Result<(Vec<Tensor>, Vec<f32>), LoadError> {
        let prefix = format!("{}.experts", self.layer);
        let matrices = self.archive.experts(&prefix, part, self.experts, rows, cols)?;
        let bias = self.archive.matrix(&format!("{prefix}.{part}.bias"), self.experts, rows)?;
        Ok((matrices, bias.to_f32()))
    }

    /// The experts of a checkpoint of Hugging Face.
    fn hugging_face(&mut self) -> Result<Vec<GatedMlp>, LoadError> {
        let (hidden, inner) = (self.hidden, self.inner);
        let biases = |loader: &mut Self, part: &str, rows: usize| {
            let name = format!("{}.experts.{part}_bias", loader.layer);
            loader.archive.matrix(&name, loader.experts, rows).map(|bias| bias.to_f32())
        };
        let gate_up_biases = biases(self, "gate_up_proj", 2 * inner)?;
        let down_biases = biases(self, "down_proj", hidden)?;
        let gate_up = self.stacked("gate_up_proj", 2 * inner, hidden)?;
        let down = self.stacked("down_proj", hidden, inner)?;
        let expert = |index: usize| {
            let bias = &gate_up_biases[index * 2 * inner..][..2 * inner];
            let every_second = |first: usize| bias.iter().skip(first).step_by(2).copied().collect();
            GatedMlp {
                gate: gate_up.matrix(index, (0..2 * inner).step_by(2)),
                up: gate_up.matrix(index, (1..2 * inner).step_by(2)),
                down: down.matrix(index, (0..hidden).step_by(1)),
                bias: Some(MlpBias {
                    gate: every_second(0),
                    up: every_second(1),
                    down: down_biases[index * hidden..][..hidden].to_vec(),
                }),
            }
        };
        Ok((0..self.experts).map(expert).collect())
    }

    /// A projection `[rows, cols]` of all experts.
    fn stacked(&mut self, part: &str, rows: usize, cols: usize) -> Result<Stacked, LoadError> {
        let (experts, name) = (self.experts, format!("{}.experts.{part}", self.layer));
        let blocks = format!("{name}_blocks");
        if !self.archive.contains(&blocks) {
            let floats = ["BF16", "F16", "F32"];
            let all = take(self.archive, &name, &floats, &[experts, cols, rows])?;
            return Ok(Stacked { rows, cols, weights: StackedWeights::Floats(all) });
        }
        if !cols.is_multiple_of(BLOCK_VALUES) {
            let expected = format!("rows of a multiple of {BLOCK_VALUES} weights");
            let remedy = "check that config.json belongs to this file";
            let found = cols.to_string();
            return Err(LoadError::new(self.archive.file(), blocks, expected, found, remedy));
        }
        let of_row = cols / BLOCK_VALUES;
        let shape = [experts, rows, of_row, NIBBLE_BYTES];
        let nibbles = take(self.archive, &blocks, &["U8"], &shape)?;
        let scales = take(self.archive, &format!("{name}_scales"), &["U8"], &shape[..3])?;
        Ok(Stacked { rows, cols, weights: StackedWeights::MxFp4 { nibbles, scales } })
    }
}

/// Values of a block of MXFP4.
const BLOCK_VALUES: usize = 32;
/// Bytes of the values of a block.
const NIBBLE_BYTES: usize = BLOCK_VALUES / 2;

/// A projection of all experts, as stored.
struct Stacked {
    rows: usize,
    cols: usize,
    weights: StackedWeights,
}

enum StackedWeights {
    /// `[experts][cols][rows]`, of a float type.
    Floats(RawTensor),
    /// `[experts][rows][cols / 32]`: 16 bytes of nibbles each, and scales.
    MxFp4 { nibbles: RawTensor, scales: RawTensor },
}

impl Stacked {
    /// The matrix of `rows` of an expert, copied on all cores.
    fn matrix(&self, expert: usize, rows: StepBy<Range<usize>>) -> Tensor {
        let dtype = match &self.weights {
            StackedWeights::Floats(all) => all.float().expect("one of those that were asked for"),
            StackedWeights::MxFp4 { .. } => Dtype::MxFp4,
        };
        let row_bytes = dtype.bytes_of(self.cols);
        copy_tiles(dtype, (rows.len(), self.cols), |first, out| {
            for (row, out) in rows.clone().skip(first).zip(out.chunks_exact_mut(row_bytes)) {
                self.copy_row(expert, row, dtype.block_bytes(), out);
            }
        })
    }

    /// Copies row `row` of an expert to `out`, in blocks of so many bytes.
    fn copy_row(&self, expert: usize, row: usize, block_bytes: usize, out: &mut [u8]) {
        let blocks = out.chunks_exact_mut(block_bytes);
        match &self.weights {
            StackedWeights::Floats(all) => {
                let first = (expert * self.cols * self.rows + row) * block_bytes;
                let column = all.bytes()[first..].chunks(self.rows * block_bytes);
                for (out, value) in blocks.zip(column) {
                    out.copy_from_slice(&value[..block_bytes]);
                }
            }
            StackedWeights::MxFp4 { nibbles, scales } => {
                let first = (expert * self.rows + row) * self.cols / BLOCK_VALUES;
                let nibbles = nibbles.bytes()[first * NIBBLE_BYTES..].chunks_exact(NIBBLE_BYTES);
                for ((out, nibbles), scale) in blocks.zip(nibbles).zip(&scales.bytes()[first..]) {
                    out[0] = *scale;
                    let nibbles = ggml_order(nibbles);
                    out[1..].iter_mut().zip(nibbles).for_each(|(out, pair)| *out = pair);
                }
            }
        }
    }
}

/// The nibbles of a block with value j in the low nibble of byte j, and value j + 16 in the high
/// one, where they were values 2j and 2j + 1.
fn ggml_order(nibbles: &[u8]) -> impl Iterator<Item = u8> {
    let value = |i: usize| nibbles[i / 2] >> (4 * (i % 2)) & 15;
    (0..NIBBLE_BYTES).map(move |j| value(j) | value(j + NIBBLE_BYTES) << 4)
}
