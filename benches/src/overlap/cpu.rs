//! The overlap on the CPU: decode steps of two engines that run the same requests, one with the
//! probe and one without, in short turns, so that the machine's drift affects both alike.

use serde_json::{Value, json};
use trail_platform::stats::{median, quantile};
use trail_runtime::engine::{EngineConfig, SteppedEngine};

use super::OverlapArgs;
use crate::decoding::{Decoding, StepShape};
use crate::model::BenchModel;

/// Steps in one measurement: a pair of measurements is long beside the clock's resolution and short
/// beside the drift.
const STEPS: u32 = 4;

/// Measures each batch size of `args`.
pub fn run(args: &OverlapArgs, bench: &BenchModel) -> Result<Value, String> {
    let rows: Result<Vec<Value>, String> =
        args.batch.iter().map(|&batch| row(args, bench, batch)).collect();
    Ok(json!({
        "model": bench.name,
        "threads": bench.threads(),
        "context": args.context,
        "rows": rows?,
    }))
}

fn row(args: &OverlapArgs, bench: &BenchModel, batch: usize) -> Result<Value, String> {
    let shape = StepShape { batch, context: args.context };
    let probe = bench.probe().map_err(|error| error.to_string())?;
    let lm_head = &bench.model.weights.lm_head;
    let macs = bench.model.layer_weights_per_token() + lm_head.rows * lm_head.cols;
    let mac_share = probe.head.macs() as f64 / macs as f64;
    let vocab = bench.model.config.vocab_size;
    let build =
        |config| SteppedEngine::new(bench.model.clone(), config).map_err(|error| error.to_string());
    let mut without = Decoding::new(shape, shape.config(bench), vocab, build)?;
    let probed = EngineConfig { probe: Some(probe), ..shape.config(bench) };
    let mut with = Decoding::new(shape, probed, vocab, build)?;
    for decoding in [&mut without, &mut with] {
        decoding.steps(STEPS)?;
        decoding.take_stats();
    }
    let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..bench.repeats {
        // The order alternates too.
        let turns = match repeat % 2 {
            0 => [with.steps(STEPS)?, without.steps(STEPS)?],
            _ => {
                let without = without.steps(STEPS)?;
                [with.steps(STEPS)?, without]
            }
        };
        on.push(turns[0]);
        off.push(turns[1]);
        ratios.push(turns[0] / turns[1] - 1.0);
        if with.tokens() != without.tokens() {
            return Err(format!("batch {batch}: the tap changed the tokens"));
        }
    }
    let stats = with.take_stats();
    Ok(json!({
        "batch": batch,
        "step_us_off": median(&off),
        "step_us_on": median(&on),
        // Of pairs of neighbouring measurements: the machine's drift cancels within a pair, and not
        // between the two medians above.
        "added": {
            "median": median(&ratios),
            "p10": quantile(&ratios, 0.1),
            "p90": quantile(&ratios, 0.9),
        },
        "mac_share": mac_share,
        "fresh_share": stats.fresh as f64 / (stats.fresh + stats.late) as f64,
        "slack_us": { "p50": quantile(&stats.slack_us, 0.5), "p1": quantile(&stats.slack_us, 0.01) },
    }))
}
