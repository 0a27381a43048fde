//! Launches of the sampler, and its answers in the engine's terms.

use super::Launch;
use crate::backend::{MAX_TOP_LOGPROBS, NonFiniteLogits, Sampled, SampledToken, SamplingParams};
use crate::cuda::plan::sampling::SamplingPlan;
use crate::sampling::MIN_TEMPERATURE;
use std::f32::consts::LOG2_E;
use trail_ptx::params::{RowSampled, RowSampling, SampleParams};

/// The part of a row's [`RowSampling`] that the request's parameters decide; the caller fills in
/// rows, position and mask.
pub fn row_sampling(params: &SamplingParams) -> RowSampling {
    let greedy = params.temperature < MIN_TEMPERATURE;
    RowSampling {
        seed: params.seed,
        tempering: if greedy { 0.0 } else { LOG2_E / params.temperature },
        top_p: params.top_p,
        min_p: params.min_p,
        repetition: params.repetition_penalty,
        presence: params.presence_penalty,
        frequency: params.frequency_penalty,
        top_k: i32::try_from(params.top_k).unwrap_or(i32::MAX),
        top_logprobs: i32::from(params.top_logprobs),
        mask_row: -1,
        ..RowSampling::default()
    }
}

/// The kernels' result in the terms of the CPU sampler. The logarithm is taken here: it is the
/// CPU's, to the bit.
pub fn sampled(row: &RowSampled) -> Sampled {
    if row.is_broken != 0 {
        return Err(NonFiniteLogits);
    }
    let mut top = [(0, 0.0); MAX_TOP_LOGPROBS];
    let log_sum = f64::from(row.max) + row.sum.ln();
    let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
    for (entry, (&token, &logit)) in
        top.iter_mut().zip(row.top_token.iter().zip(&row.top_logit)).take(row.num_top as usize)
    {
        *entry = (token as u32, logprob(logit));
    }
    Ok(SampledToken {
        id: row.token as u32,
        logprob: logprob(row.logit),
        top,
        num_top: row.num_top as u8,
    })
}

/// Samples a token for each row: the three kernels of `plan`, in order. The workspaces have room
/// for what the plan says; that of all sums by 256 tokens, five times `plan.sums` words, begins at
/// `block_max`. `band_count` is zero before the first launch, and so are `team_barriers`, which
/// every launch leaves for the next.
pub fn sample(plan: &SamplingPlan, params: SampleParams) -> [Launch<SampleParams>; 3] {
    let sums = |index: usize| params.block_max.add(index * plan.sums);
    let params = SampleParams {
        block_raw_max: sums(1),
        block_sums: sums(2),
        block_raw_sums: sums(3),
        block_broken: sums(4).cast(),
        rows: plan.rows as i32,
        vocab: plan.vocab as i32,
        blocks: plan.blocks as i32,
        ..params
    };
    plan.launches.map(|plan| Launch { plan, params })
}
