//! The model that a CPU benchmark measures, and what is asked of it.

use std::path::Path;
use std::sync::Arc;

use trail_runtime::batch::BLOCK_TOKENS;
use trail_runtime::cpu::{CpuBackend, CpuOptions, Isa};
use trail_runtime::model::{Dtype, LayerWeights, Model, Tensor};

/// Options common to the CPU benchmarks.
#[derive(Clone, Debug, clap::Args)]
pub struct Subject {
    /// A model's file or folder, or the name of a shape to be filled with random weights.
    #[arg(long, default_value = "llama3.2-1b")]
    pub model: String,
    /// Storage type of random weights: bf16, f16 or f32.
    #[arg(long, default_value = "bf16", value_parser = parse_dtype)]
    pub dtype: Dtype,
    /// Threads; all cores where not given.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Instruction set of the kernels: auto, portable, avx2 or avx512.
    #[arg(long, default_value = "auto")]
    pub isa: Isa,
    /// Measurements of each figure; the median is reported.
    #[arg(long, default_value_t = 9)]
    pub repeats: usize,
}

impl Subject {
    /// Loads the model, or makes it up.
    pub fn load(&self) -> Result<Arc<Model>, String> {
        let path = Path::new(&self.model);
        let model = if path.exists() {
            Model::load(path).map_err(|error| error.to_string())?
        } else {
            Model::random(&self.model, self.dtype, 1)?
        };
        Ok(Arc::new(model))
    }

    /// A backend for `segments` requests of `context` tokens, and batches of `rows` rows.
    pub fn backend(
        &self,
        model: &Arc<Model>,
        rows: usize,
        segments: usize,
        context: usize,
    ) -> Result<CpuBackend, String> {
        let options = CpuOptions {
            threads: self.threads(),
            isa: self.isa,
            max_rows: rows,
            max_segments: segments,
            num_blocks: segments * context.div_ceil(BLOCK_TOKENS),
            max_context: context,
        };
        CpuBackend::new(model.clone(), options)
    }

    /// Threads that the benchmark runs on.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores)
    }
}

fn parse_dtype(name: &str) -> Result<Dtype, String> {
    match name {
        "bf16" => Ok(Dtype::Bf16),
        "f16" => Ok(Dtype::F16),
        "f32" => Ok(Dtype::F32),
        _ => Err(format!("unknown dtype {name:?}: bf16, f16 or f32")),
    }
}

/// The matrices that every decode step reads: all blocks and the output projection, not the
/// embedding table.
pub fn streamed(model: &Model) -> impl Iterator<Item = &Tensor> {
    model.weights.layers.iter().flat_map(projections).chain([&model.weights.lm_head])
}

/// The matrices of one block.
pub fn projections(layer: &LayerWeights) -> [&Tensor; 7] {
    [&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down]
}

/// Refuses logits that are not finite or whose bits differ from those of the pass before.
pub fn verify(logits: &[f32], checksum: &mut Option<u64>) -> Result<(), String> {
    if !logits.iter().all(|x| x.is_finite()) {
        return Err("logits are not finite".into());
    }
    let sum = logits.iter().fold(0_u64, |sum, x| sum.rotate_left(5) ^ u64::from(x.to_bits()));
    if *checksum.get_or_insert(sum) != sum {
        return Err("logits differ between repetitions".into());
    }
    Ok(())
}

/// The middle of `values`, which must not be empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
