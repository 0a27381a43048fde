//! Taking in a prompt, against the time that its multiplications take at the rate of the same run.

use serde_json::{Value, json};
use trail_base::stats::median;

use super::limits::{Limits, prefill_flops};
use super::runner::{Runner, Sizes};
use crate::prefill::PrefillArgs;
use crate::subject::Subject;

/// Measures.
pub fn run(args: &PrefillArgs, subject: &Subject) -> Result<Value, String> {
    let longest = args.tokens.iter().copied().max().ok_or("no prompt length given")?;
    if args.tokens.contains(&0) {
        return Err("prompt lengths must be at least 1".into());
    }
    let rows_of_a_step = args.rows.unwrap_or(longest);
    let sizes = Sizes { requests: 1, rows: rows_of_a_step, context: longest };
    let mut runner = Runner::new(subject, sizes)?;
    let limits = Limits::measure(runner.backend().device(), &args.limits)?;
    let mut rows = Vec::new();
    for &tokens in &args.tokens {
        runner.prefill(0, tokens, rows_of_a_step)?;
        let expected = runner.sampled_ids();
        let mut times = Vec::new();
        for _ in 0..subject.repeats {
            times.push(runner.prefill(0, tokens, rows_of_a_step)?);
            if runner.sampled_ids() != expected {
                return Err(format!("{tokens} tokens: repetitions chose different tokens"));
            }
        }
        let seconds = median(&times);
        let tflops = prefill_flops(&subject.model, tokens) / seconds / 1e12;
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
        "model": subject.name,
        "rows_of_a_step": rows_of_a_step,
        "limits": limits.report(),
        "rows": rows,
    }))
}
