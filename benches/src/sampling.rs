//! `bench sampling`: the sampler's time for a token, as a share of the decode step it belongs to.

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{Error, count};
use trail_platform::stats::median;
use trail_runtime::backend::{SamplingInput, SamplingInputs, SamplingParams};
use trail_runtime::cpu::Samplers;

use crate::decode;
use crate::model::{BenchModel, MAX_BATCH, MAX_CONTEXT, verify};
use crate::report::{Column, Group};

/// Options of `bench sampling`.
#[derive(Args, Clone, Copy, Debug)]
pub struct SamplingArgs {
    /// Rows of the step
    #[arg(long, default_value_t = 16, value_parser = count::<MAX_BATCH>)]
    batch: usize,
    /// Tokens in each row's context; penalties count half of it as the prompt
    #[arg(long, default_value_t = 128, value_parser = count::<MAX_CONTEXT>)]
    context: usize,
}

/// Columns of the printed table.
pub const COLUMNS: &[Group] = &[
    Group("", &[Column("sampling", "/sampling", 0)]),
    Group("", &[Column("us/token", "/us_per_token", 1)]),
    Group("", &[Column("share of step", "/share_of_step", 4)]),
];

/// Ways to sample, from the cheapest.
fn ways() -> [(&'static str, SamplingParams); 6] {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let drawn = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    [
        ("greedy", greedy.clone()),
        ("temperature 0.8", drawn.clone()),
        ("top_k 50", SamplingParams { top_k: 50, ..drawn.clone() }),
        ("top_p 0.95", SamplingParams { top_p: 0.95, ..drawn.clone() }),
        (
            "top_p 0.95, penalties",
            SamplingParams {
                top_p: 0.95,
                repetition_penalty: 1.1,
                frequency_penalty: 0.1,
                ..drawn
            },
        ),
        ("greedy, 20 logprobs", SamplingParams { top_logprobs: 20, ..greedy }),
    ]
}

/// The same for all requests.
struct Inputs<'a> {
    params: &'a SamplingParams,
    tokens: &'a [u32],
}

impl SamplingInputs for Inputs<'_> {
    fn of(&self, _request: u32) -> SamplingInput<'_> {
        let (prompt, generated) = self.tokens.split_at(self.tokens.len() / 2);
        SamplingInput { params: self.params, prompt, generated, allowed: None }
    }
}

/// Measures decode steps, and each way to sample from their logits, in turn.
pub fn run(args: &SamplingArgs, bench: &BenchModel) -> Result<Value, Error> {
    let SamplingArgs { batch, context } = *args;
    let ways = ways();
    let mut forward = bench.forward(batch, batch, context)?;
    decode::fill_kv(&mut forward);
    let rows = bench.decode_batch(batch, context - 1, context);
    let vocab = bench.model.config.vocab_size;
    let mut samplers = Samplers::new(&forward);
    let tokens: Vec<u32> = (0..context).map(|i| (i * 7 % vocab) as u32).collect();
    let mut sampled = Vec::with_capacity(batch);
    let (mut steps, mut checksum) = (Vec::new(), None);
    let mut times = ways.each_ref().map(|_| Vec::new());
    for repeat in 0..=bench.repeats {
        let start = Instant::now();
        verify(forward.forward(&rows, &[]), &mut checksum)?;
        let step = start.elapsed().as_secs_f64();
        for ((_, params), times) in ways.iter().zip(&mut times) {
            let inputs = Inputs { params, tokens: &tokens };
            sampled.clear();
            let start = Instant::now();
            samplers.sample(&mut forward, &rows, &inputs, &mut sampled);
            let seconds = start.elapsed().as_secs_f64();
            if sampled.len() != batch || sampled.iter().any(Result::is_err) {
                return Err(Error::failed("the logits are not finite"));
            }
            // The first pass warms caches and page tables.
            if repeat > 0 {
                times.push(seconds);
            }
        }
        if repeat > 0 {
            steps.push(step);
        }
    }
    let step = median(&steps);
    let rows = ways.iter().zip(&times).map(|((name, _), times)| {
        let seconds = median(times);
        json!({
            "sampling": name,
            "us_per_token": seconds * 1e6 / batch as f64,
            "share_of_step": seconds / (step + seconds),
        })
    });
    let rows: Vec<Value> = rows.collect();
    let mut report = bench.report(&forward);
    report["vocab"] = json!(vocab);
    report["batch"] = json!(batch);
    report["context"] = json!(context);
    report["step_us"] = json!(step * 1e6);
    report["rows"] = rows.into();
    Ok(report)
}
