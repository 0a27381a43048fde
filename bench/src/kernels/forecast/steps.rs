//! Forecasts of whole steps: the sums over their kernels, without sampling and the host.

use serde_json::{Value, json};
use trail_ptx::Target;
use trail_runtime::cuda::plan::{LaunchPlan, gemm};
use trail_runtime::model::ModelConfig;

use super::super::{attention, products};
use super::Forecaster;

/// Tokens of each request's context in a decode step.
const CONTEXT: usize = 1024;
/// Most rows of a decode step; larger ones are chunks of one prompt.
const MOST_DECODE_ROWS: usize = 256;

/// A step with each of `rows`: decode rows up to 256, prompts beyond. On Hopper once more with its
/// own products and prompts' attention.
pub fn all(forecaster: &Forecaster, config: &ModelConfig, rows: &[usize]) -> Vec<Value> {
    let hopper = forecaster.rates.chip.target == Some(Target::Sm90a);
    let variants = if hopper { &[false, true][..] } else { &[false][..] };
    let steps = rows.iter().flat_map(|&rows| variants.iter().map(move |&own| (rows, own)));
    steps.filter_map(|(rows, own)| step(forecaster, config, rows, own)).collect()
}

/// One step, with `own` by Hopper's own kernels as `--hopper-products` chooses them; `None` where a
/// kernel is not forecast, or the chip has none.
pub(super) fn step(
    forecaster: &Forecaster,
    config: &ModelConfig,
    rows: usize,
    own: bool,
) -> Option<Value> {
    let chip = &forecaster.rates.chip;
    let plans = products::plans(config, rows, chip);
    if own && chip.target != Some(Target::Sm90a) {
        return None;
    }
    let is_prompt = rows > MOST_DECODE_ROWS;
    let wgmma = attention::wgmma_prefill_launch(config, chip, rows);
    let wgmma = wgmma.filter(|plan| own && forecaster.report(plan.kernel).is_some());
    let attention = match is_prompt {
        true => wgmma.or_else(|| attention::prefill_launch(config, rows))?,
        false => attention::decode_launch(config, chip, rows, CONTEXT)?,
    };
    let layers = config.num_layers as f64;
    let mut step = Sums::default();
    step.add(forecaster, &attention, rows, layers)?;
    for op in ["qkv", "o", "gate_up", "down", "lm_head"] {
        let portable = plans.iter().find(|planned| planned.op == op);
        // A prompt has logits for its last row alone, which cost next to nothing.
        let Some(portable) = portable.map(|planned| planned.plan) else { continue };
        let plan = own.then(|| gemm::hopper(chip, portable.product)).flatten().unwrap_or(portable);
        let times = if op == "lm_head" { 1.0 } else { layers };
        step.add(forecaster, &plan.launch, rows, times)?;
    }
    let us = step.seconds * 1e6;
    let floor = match is_prompt {
        true => step.flops / forecaster.rates.matrix_flops_per_s(),
        false => step.bytes / forecaster.rates.read_bytes_per_s,
    };
    Some(json!({
        "op": if is_prompt { "prefill_step" } else { "decode_step" },
        "kernel": if own { "bulk_*, wgmma_*" } else { "skinny_*, tiled_*" },
        "rows": rows,
        "context": if is_prompt { 0 } else { CONTEXT },
        "us": { "forecast": us },
        "limit": if is_prompt { "matrix rate" } else { "read bandwidth" },
        "share": floor / step.seconds,
    }))
}

/// Sums over the launches of a step.
#[derive(Default)]
struct Sums {
    seconds: f64,
    bytes: f64,
    flops: f64,
}

impl Sums {
    fn add(
        &mut self,
        forecaster: &Forecaster,
        plan: &LaunchPlan,
        rows: usize,
        times: f64,
    ) -> Option<()> {
        self.seconds += forecaster.launch(plan, rows)?.seconds * times;
        self.bytes += plan.bytes as f64 * times;
        self.flops += plan.flops as f64 * times;
        Some(())
    }
}
