//! Example 9: Taps any layer and reads it: a receiver of one's own gets the residual stream after
//! the layers that it names, and a plain forward pass says what it should have got.
//!
//! `cargo run --release --example 09_tap`

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trail_runtime::backend::{BLOCK_TOKENS, Batch, HiddenSink, TapPlan};
use trail_runtime::cpu::{Compute, CpuForward, CpuOptions, Isa, Tap};
use trail_runtime::model::{Dtype, Model};
use trail_runtime::reference::Reference;
use trail_runtime::text::Tokenizer;

/// Keeps the rows of one layer.
#[derive(Default)]
struct Layer {
    /// `[tokens, hidden]`.
    rows: Mutex<Vec<f32>>,
}

impl HiddenSink for Layer {
    fn publish_hidden(&self, _: u64, _: usize, _: &TapPlan, _: &Batch, hidden: &[f32]) {
        self.rows.lock().expect("no panic").extend_from_slice(hidden);
    }

    /// No tasks: this receiver computes nothing while the upper layers run.
    fn assist(&self) -> bool {
        false
    }
}

/// Prints the layers of a text.
pub fn main() -> Result<(), Box<dyn Error>> {
    run("Once upon a time there was a cat.", &mut std::io::stdout())
}

/// Prints the length of the last token's vector after each layer, and its difference from the plain
/// forward pass.
pub fn run(text: &str, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let model = Arc::new(Model::load(folder)?);
    let tokens = Tokenizer::load(folder, model.config.vocab_size)?.encode(text, true)?;
    let reference = Reference::new(&model).trace(&tokens);

    // A pass over one sequence, whose KV is in the first blocks of the pool.
    let num_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
    let options = CpuOptions {
        threads: 1,
        pin: false,
        isa: Isa::detect(),
        compute: Compute::Exact,
        repack: false,
        max_rows: tokens.len(),
        max_segments: 1,
        kv_dtype: Dtype::F32,
        num_blocks,
        max_context: tokens.len(),
    };
    let mut forward = CpuForward::new(model.clone(), options)?;
    let blocks: Vec<u32> = (0..num_blocks as u32).collect();
    let mut batch = Batch::default();
    batch.push(0, 0, &tokens, &blocks, false);

    let layers: Vec<Layer> = reference.hidden.iter().map(|_| Layer::default()).collect();
    let plan = TapPlan::default();
    let taps: Vec<Tap<'_>> = layers
        .iter()
        .enumerate()
        .map(|(layer, receiver)| Tap { layer, at: 0, step: 1, plan: &plan, receiver })
        .collect();
    forward.forward(&batch, &taps);

    writeln!(out, "{} tokens, {} layers", tokens.len(), layers.len())?;
    for (index, (layer, expected)) in layers.iter().zip(&reference.hidden).enumerate() {
        let rows = layer.rows.lock().expect("no panic");
        let differences = rows.iter().zip(expected.iter().flatten()).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0, f32::max);
        let last = &rows[rows.len() - model.config.hidden_size..];
        let norm = last.iter().map(|x| x * x).sum::<f32>().sqrt();
        writeln!(out, "layer {index}: length {norm:>6.2}, difference {difference:.6}")?;
    }
    Ok(())
}
