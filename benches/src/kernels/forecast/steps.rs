//! Forecasts of whole steps: the sums over their kernels, without sampling and the host.

use serde_json::{Value, json};
use trail_ptx::Target;
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::hopper::wgmma::{Candidate, candidates};
use trail_runtime::model::ModelConfig;

use super::super::attention;
use super::super::products::{self, Family};
use super::Forecaster;

/// Tokens of each request's context in a decode step.
const CONTEXT: usize = 1024;
/// Most rows of a decode step; larger ones are chunks of one prompt.
const MAX_DECODE_ROWS: usize = 256;

/// Products of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Products {
    /// `skinny_*` and `tiled_*`.
    Portable,
    /// Hopper's own, where they have a plan.
    Hopper,
}

/// A step with each of `rows`: decode rows up to 256, prompts beyond. On Hopper again with its own
/// products and prompts' attention.
pub fn all(forecaster: &Forecaster, config: &ModelConfig, rows: &[usize]) -> Vec<Value> {
    let hopper = forecaster.rates.chip.target == Some(Target::Sm90a);
    let all = [Products::Portable, Products::Hopper];
    let variants = if hopper { &all[..] } else { &all[..1] };
    let steps = rows.iter().flat_map(|&rows| variants.iter().map(move |&by| (rows, by)));
    steps.filter_map(|(rows, by)| step(forecaster, config, rows, by)).collect()
}

/// One step with its products `by`; `None` where a kernel is not forecast, or the chip or so many
/// rows have no such products.
pub(super) fn step(
    forecaster: &Forecaster,
    config: &ModelConfig,
    rows: usize,
    by: Products,
) -> Option<Value> {
    let chip = &forecaster.rates.chip;
    let plans = products::plans(config, rows, chip);
    let own = by == Products::Hopper;
    if own && !plans.iter().any(|planned| planned.family != Family::Portable) {
        return None;
    }
    let is_prompt = rows > MAX_DECODE_ROWS;
    let by_wgmma = attention::wgmma_prefill_launch(config, chip, rows);
    let by_wgmma = by_wgmma.filter(|plan| own && forecaster.report(plan.kernel).is_some());
    let attention = match is_prompt {
        true => by_wgmma.or_else(|| attention::prefill_launch(config, rows))?,
        false => attention::decode_launch(config, chip, rows, CONTEXT)?,
    };
    let layers = config.num_layers as f64;
    let mut step = Sums::default();
    step.add(forecaster, &attention, rows, layers)?;
    for op in ["qkv", "o", "gate_up", "down", "lm_head"] {
        let portable = plans.iter().find(|planned| planned.op == op);
        // A prompt has logits for its last row alone, which cost next to nothing.
        let Some(portable) = portable.map(|planned| planned.plan) else { continue };
        let product = portable.product;
        // Earlier machine code has no clusters.
        let is_known = |of: &Candidate| forecaster.report(of.plan.launch.kernel).is_some();
        let candidates = if own { candidates(chip, product) } else { Vec::new() };
        let best = candidates.into_iter().filter(is_known).min_by_key(|of| of.clocks);
        let plan = best.map_or(portable, |of| of.plan);
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
        "kernel": match by {
            Products::Portable => "skinny_*, tiled_*",
            Products::Hopper => "wgmma_*",
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
