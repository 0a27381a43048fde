//! Prefill on a GPU, against the time that its multiply-adds take at the rate measured in the same
//! run.

use serde_json::{Value, json};
use trail_platform::stats::median;

use super::PrefillArgs;
use crate::gpu::limits::{Limits, prefill_flops};
use crate::gpu::runner::{Runner, Sizes};
use crate::model::BenchModel;

/// Measures each prompt length of `args`, at most `longest` tokens.
pub fn run(args: &PrefillArgs, bench: &BenchModel, longest: usize) -> Result<Value, String> {
    let rows_of_a_step = args.rows.unwrap_or(longest);
    let sizes = Sizes { requests: 1, rows: rows_of_a_step, context: longest };
    let mut runner = Runner::new(bench, sizes)?;
    let limits = Limits::measure(runner.backend().device(), &args.limits)?;
    let mut rows = Vec::new();
    for &tokens in &args.tokens {
        runner.prefill(0, tokens, rows_of_a_step)?;
        let expected = runner.sampled_ids();
        let mut times = Vec::new();
        for _ in 0..bench.repeats {
            times.push(runner.prefill(0, tokens, rows_of_a_step)?);
            if runner.sampled_ids() != expected {
                return Err(format!("{tokens} tokens: repetitions chose different tokens"));
            }
        }
        let seconds = median(&times);
        let tflops = prefill_flops(&bench.model, tokens) / seconds / 1e12;
        rows.push(json!({
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens as f64 / seconds,
            "tflop_per_s": tflops,
            "share_of_matrix_rate": tflops / limits.matrix_tflops,
        }));
    }
    Ok(json!({
        "device": runner.backend().device_name(),
        "model": bench.name,
        "rows_of_a_step": rows_of_a_step,
        "limits": limits.report(),
        "rows": rows,
    }))
}
