//! `bench prefill`: time to take in a prompt, and its share of the machine's multiply-add peak.
//!
//! Counted are the multiply-adds of the matrices: all blocks for every token, the output projection for the
//! last one. Attention and the rest are not counted, so the share is what the matrices alone would
//! need.

use std::time::Instant;

use serde_json::{Value, json};
use trail_base::stats::median;
use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::Pool;
use trail_runtime::model::{Model, Tensor};

use super::ceilings;
use super::gpu::{LimitArgs, at_least_one};
use super::subject::{Subject, projections, verify};

/// Options of `bench prefill`.
#[derive(Clone, Debug, clap::Args)]
pub struct PrefillArgs {
    /// Prompt lengths.
    #[arg(long, value_delimiter = ',', default_value = "512")]
    pub tokens: Vec<usize>,
    /// GPU: rows of a step, so that longer prompts are taken in by several [default: the longest prompt]
    #[arg(long, value_parser = at_least_one)]
    pub rows: Option<usize>,
    /// What a GPU is held against
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Measures.
pub fn run(args: &PrefillArgs, subject: &Subject) -> Result<Value, String> {
    let longest = args.tokens.iter().copied().max().ok_or("no prompt length given")?;
    if args.tokens.contains(&0) {
        return Err("prompt lengths must be at least 1".into());
    }
    let model = &subject.model;
    let mut backend = subject.backend(longest, 1, longest)?;
    let mut pool = Pool::new(subject.threads())?;
    let mut peaks = Vec::new();
    let mut rows = Vec::new();
    for &tokens in &args.tokens {
        let batch = prompt(model, tokens);
        let (mut checksum, mut times, mut shares) = (None, Vec::new(), Vec::new());
        let mut last = 0.1;
        for repeat in 0..=subject.repeats {
            let peak = ceilings::fma_gflop_per_s(&mut pool, backend.isa(), last / 4.0);
            let start = Instant::now();
            let logits = backend.forward(&batch, None);
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
            "share_of_fma_peak": median(&shares),
        }));
    }
    let mut report = subject.report(&backend);
    report["rows"] = rows.into();
    report["fma_peak_gflop_per_s"] = json!(median(&peaks));
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
    let blocks: f64 = model.weights.layers.iter().flat_map(projections).map(size).sum();
    2.0 * (blocks * tokens as f64 + size(&model.weights.lm_head))
}
