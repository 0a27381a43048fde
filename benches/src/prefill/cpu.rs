//! Prefill on the CPU, as a share of its multiply-add peak: that of f32, or of bytes or bf16 if the
//! products are in a narrow type.
//!
//! The count is the multiply-adds of the matrices: all layers for every token, the output
//! projection for the last one. Attention and the rest are not counted, so the share is that of the
//! matrices alone.

use std::time::Instant;

use serde_json::{Value, json};
use trail_cli::Error;
use trail_platform::stats::median;
use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::model::{Model, Tensor};

use super::PrefillArgs;
use crate::ceilings;
use crate::model::{BenchModel, verify};

/// Measures each prompt length of `args`, at most `longest` tokens.
pub fn run(args: &PrefillArgs, bench: &BenchModel, longest: usize) -> Result<Value, Error> {
    let model = &bench.model;
    let mut forward = bench.forward(longest, 1, longest)?;
    let mut pool = bench.pool()?;
    let (share_of_peak, gop_per_s) = match (forward.byte_products(), forward.bf16_products()) {
        (Some(_), _) => ("share_of_byte_peak", "byte_peak_gop_per_s"),
        (None, Some(_)) => ("share_of_bf16_peak", "bf16_peak_gflop_per_s"),
        (None, None) => ("share_of_fma_peak", "fma_peak_gflop_per_s"),
    };
    let mut peaks = Vec::new();
    let mut rows = Vec::new();
    for &tokens in &args.tokens {
        let batch = prompt(model, tokens);
        let (mut checksum, mut times, mut shares) = (None, Vec::new(), Vec::new());
        let mut last = 0.1;
        for repeat in 0..=bench.repeats {
            let peak = ceilings::multiply_add_gop_per_s(&mut pool, &forward, last / 4.0);
            let start = Instant::now();
            let logits = forward.forward(&batch, &[]);
            let seconds = start.elapsed().as_secs_f64();
            verify(logits, &mut checksum)?;
            last = seconds;
            // The first pass warms caches and page tables.
            if repeat > 0 {
                times.push(seconds);
                shares.push(flops(model, tokens) / seconds / 1e9 / peak);
                peaks.push(peak);
            }
        }
        let seconds = median(&times);
        rows.push(json!({
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens as f64 / seconds,
            "gflop_per_s": flops(model, tokens) / seconds / 1e9,
            share_of_peak: median(&shares),
        }));
    }
    let mut report = bench.report(&forward);
    report["rows"] = rows.into();
    report[gop_per_s] = json!(median(&peaks));
    Ok(report)
}

/// One request's prompt of `tokens` tokens.
fn prompt(model: &Model, tokens: usize) -> Batch {
    let vocab = model.config.vocab_size as u32;
    let ids: Vec<u32> = (0..tokens as u32).map(|i| (i * 7 + 1) % vocab).collect();
    let blocks: Vec<u32> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).collect();
    let mut batch = Batch::default();
    batch.push(0, 0, &ids, &blocks, true);
    batch
}

/// Floating-point operations of the matrices: two for each weight and token.
fn flops(model: &Model, tokens: usize) -> f64 {
    let size = |tensor: &Tensor| (tensor.rows * tensor.cols) as f64;
    let blocks = model.layer_weights_per_token() as f64;
    2.0 * (blocks * tokens as f64 + size(&model.weights.lm_head))
}
