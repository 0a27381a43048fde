//! Forecasts of whole steps: the sums over their kernels, without sampling and the host.

use serde_json::{Value, json};
use trail_ptx::Target;
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::model::ModelConfig;

use super::super::attention;
use super::super::products::{self, Family};
use super::Forecaster;

/// Tokens of each request's context in a decode step.
const CONTEXT: usize = 1024;
/// Most rows of a decode step; larger ones are chunks of one prompt.
const MOST_DECODE_ROWS: usize = 256;

/// A step with each of `rows`: decode rows up to 256, prompts beyond. On Hopper again with the
/// products and prompts' attention by wgmma, and with products in clusters.
pub fn all(forecaster: &Forecaster, config: &ModelConfig, rows: &[usize]) -> Vec<Value> {
    let hopper = forecaster.rates.chip.target == Some(Target::Sm90a);
    let all = [Family::Portable, Family::Wgmma, Family::Cluster];
    let variants = if hopper { &all[..] } else { &all[..1] };
    let steps = rows.iter().flat_map(|&rows| variants.iter().map(move |&family| (rows, family)));
    steps.filter_map(|(rows, family)| step(forecaster, config, rows, family)).collect()
}

/// One step, each product by `family`, or else by the one before it; `None` where a kernel is not
/// forecast, or no product is of the family.
pub(super) fn step(
    forecaster: &Forecaster,
    config: &ModelConfig,
    rows: usize,
    family: Family,
) -> Option<Value> {
    let chip = &forecaster.rates.chip;
    let plans = products::plans(config, rows, chip);
    if !plans.iter().any(|planned| planned.family == family) {
        return None;
    }
    let wgmma = family != Family::Portable;
    let is_prompt = rows > MOST_DECODE_ROWS;
    let own = attention::wgmma_prefill_launch(config, chip, rows);
    let own = own.filter(|own| wgmma && forecaster.report(own.kernel).is_some());
    let attention = match is_prompt {
        true => own.or_else(|| attention::prefill_launch(config, rows))?,
        false => attention::decode_launch(config, chip, rows, CONTEXT)?,
    };
    let layers = config.num_layers as f64;
    let mut step = Sums::default();
    step.add(forecaster, &attention, rows, layers)?;
    for op in ["qkv", "o", "gate_up", "down", "lm_head"] {
        let of_op = || plans.iter().filter(|planned| planned.op == op);
        let wanted = of_op().rfind(|planned| planned.family as u8 <= family as u8);
        // A prompt has logits for its last row alone, which cost next to nothing.
        let Some(planned) = wanted else { continue };
        let times = if op == "lm_head" { 1.0 } else { layers };
        step.add(forecaster, &planned.plan.launch, rows, times)?;
    }
    let us = step.seconds * 1e6;
    let floor = match is_prompt {
        true => step.flops / forecaster.rates.matrix_flops_per_s(),
        false => step.bytes / forecaster.rates.read_bytes_per_s,
    };
    Some(json!({
        "op": if is_prompt { "prefill_step" } else { "decode_step" },
        "kernel": match family {
            Family::Portable => "skinny_*, tiled_*",
            Family::Wgmma => "wgmma_*",
            Family::Cluster => "wgmma_*_cluster_*",
        },
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
