//! `bench accuracy`: the log probabilities of a text by `--compute fast` and `--kv-dtype` against
//! `exact` with keys and values in f32.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{Error, count};
use trail_platform::read::read_text;
use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{Compute, CpuForward};
use trail_runtime::model::Dtype;

use crate::model::{BenchModel, MAX_BATCH, MAX_CONTEXT};

/// Largest text, MiB.
const MAX_TEXT_MIB: u64 = 1024;

/// Options of `bench accuracy`.
#[derive(Args, Clone, Debug)]
pub struct AccuracyArgs {
    /// Text whose tokens are predicted
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Sequences that the text is cut into
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<MAX_BATCH>)]
    sequences: usize,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count::<MAX_CONTEXT>)]
    tokens: usize,
    /// Write the tokens, and the log probabilities and most probable tokens of `exact`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Sums over positions.
#[derive(Default)]
struct Sums {
    positions: usize,
    difference: f64,
    agreed: usize,
    divergence: f64,
    exact: f64,
    fast: f64,
}

/// Decodes the sequences by both, one token of each sequence at a time, and compares the
/// distributions of the next token.
pub fn run(args: &AccuracyArgs, bench: &BenchModel) -> Result<Value, Error> {
    let sequences = sequences(args, bench)?;
    let forward = |compute, kv_dtype| {
        bench.forward_by(compute, kv_dtype, args.sequences, args.sequences, args.tokens)
    };
    let mut exact = forward(Compute::Exact, Dtype::F32)?;
    let mut fast = forward(Compute::Fast, bench.kv_dtype())?;
    let (mut sums, mut logprobs, mut best) = (Sums::default(), Vec::new(), Vec::new());
    for position in 0..args.tokens - 1 {
        let batch = batch(&sequences, position);
        let [exact, fast] = [&mut exact, &mut fast].map(|forward| distributions(forward, &batch));
        for ((exact, fast), sequence) in exact.iter().zip(&fast).zip(&sequences) {
            let next = sequence[position + 1] as usize;
            sums.add(exact, fast, next);
            logprobs.push(exact[next]);
            best.push(top(exact));
        }
    }
    if let Some(path) = &args.out {
        // Per position, then per sequence.
        let report = json!({ "sequences": sequences, "logprobs": logprobs, "best": best });
        fs::write(path, report.to_string())
            .map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
    }
    let mut report = bench.report(&fast);
    let mean = |sum: f64| sum / sums.positions as f64;
    report["positions"] = json!(sums.positions);
    report["mean_abs_difference_of_logprobs"] = json!(mean(sums.difference));
    report["same_top_1"] = json!(mean(sums.agreed as f64));
    report["mean_kl_divergence"] = json!(mean(sums.divergence));
    report["perplexity"] =
        json!({ "exact": mean(-sums.exact).exp(), "fast": mean(-sums.fast).exp() });
    Ok(report)
}

impl Sums {
    fn add(&mut self, exact: &[f64], fast: &[f64], next: usize) {
        self.positions += 1;
        self.difference += (exact[next] - fast[next]).abs();
        self.agreed += usize::from(top(exact) == top(fast));
        self.divergence += exact.iter().zip(fast).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        self.exact += exact[next];
        self.fast += fast[next];
    }
}

/// The first tokens of the text, in sequences.
fn sequences(args: &AccuracyArgs, bench: &BenchModel) -> Result<Vec<Vec<u32>>, Error> {
    let shown = args.text.display();
    if args.tokens < 2 {
        return Err(Error::usage("--tokens: a sequence needs 2 at least"));
    }
    if args.tokens > bench.model.config.max_context {
        let longest = bench.model.config.max_context;
        return Err(Error::usage(format!("--tokens: the model's context is {longest}")));
    }
    let text = read_text(&args.text, MAX_TEXT_MIB)
        .map_err(|error| Error::usage(format!("--text {shown}: {error}")))?;
    let ids = bench.encode(&text)?;
    let (needed, found) = (args.sequences * args.tokens, ids.len());
    if found < needed {
        return Err(Error::usage(format!(
            "--text {shown} has {found} tokens, {needed} are needed: lower --sequences or --tokens"
        )));
    }
    Ok(ids[..needed].chunks_exact(args.tokens).map(<[u32]>::to_vec).collect())
}

/// One token of each sequence.
fn batch(sequences: &[Vec<u32>], position: usize) -> Batch {
    let mut batch = Batch::default();
    for (request, sequence) in (0_u32..).zip(sequences) {
        let blocks_each = sequence.len().div_ceil(BLOCK_TOKENS) as u32;
        let blocks: Vec<u32> = (request * blocks_each..(request + 1) * blocks_each).collect();
        batch.push(request, position as u32, &sequence[position..=position], &blocks, true);
    }
    batch
}

/// Log probabilities `[sequences][vocab]`.
fn distributions(forward: &mut CpuForward, batch: &Batch) -> Vec<Vec<f64>> {
    let vocab = forward.model().config.vocab_size;
    let rows = forward.forward(batch, &[]).chunks_exact(vocab);
    rows.map(|logits| {
        let max = logits.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(x.into()));
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        logits.iter().map(|&x| f64::from(x) - max - sum.ln()).collect()
    })
    .collect()
}

/// The most probable token.
fn top(logprobs: &[f64]) -> usize {
    (0..logprobs.len()).max_by(|&a, &b| logprobs[a].total_cmp(&logprobs[b])).unwrap_or(0)
}
