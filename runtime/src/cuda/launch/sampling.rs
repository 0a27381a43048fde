//! Launches of the sampler, and its answers in the engine's terms.

use super::Launch;
use crate::backend::{MAX_TOP_LOGPROBS, NonFiniteLogits, Sampled, SampledToken, SamplingParams};
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::sampling::SamplingPlan;
use crate::sampling::MIN_TEMPERATURE;
use cudarc::driver::sys::CUdeviceptr;
use std::f32::consts::LOG2_E;
use trail_ptx::params::{RowSampled, RowSampling, SampleParams, TokenCountsParams};

/// Buffers of the sampler, as device addresses.
#[derive(Clone, Copy, Debug)]
pub struct SamplerBuffers {
    /// Logits `[rows, stride]` f32.
    pub logits: CUdeviceptr,
    /// Elements from one row of logits to the next, a multiple of 4.
    pub stride: usize,
    /// `[rows]` [`RowSampling`].
    pub row_sampling: CUdeviceptr,
    /// Token counts `[batch slots, vocab]` u32; 0: no row has penalties.
    pub token_counts: CUdeviceptr,
    /// Room for `plan.weights` f32.
    pub weights: CUdeviceptr,
    /// Room for five times `plan.sums` words.
    pub sums: CUdeviceptr,
    /// Room for `plan.team_sums` f32.
    pub team_sums: CUdeviceptr,
    /// Room for `plan.band` u64.
    pub band: CUdeviceptr,
    /// Counts of a band by row `[rows]` u32, zero before the first launch.
    pub band_count: CUdeviceptr,
    /// Barriers of teams by row `[rows]` u32, zero before the first launch; every launch leaves
    /// them for the next.
    pub team_barriers: CUdeviceptr,
    /// `[rows]` [`RowSampled`].
    pub sampled: CUdeviceptr,
    /// The tokens again `[batch slots]` i32, by batch_idx; 0: nowhere.
    pub last: CUdeviceptr,
    /// The step's number, modulo 2^32, stored with each result `[1]` u32.
    pub step_seq: CUdeviceptr,
}

/// Rows of a request's logits and token counts, and the position that is sampled.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowPlace {
    /// Row of the logits; `None`: a padding row, which touches nothing.
    pub row: Option<usize>,
    /// Row of the token counts; `None`: the request has no penalties.
    pub token_counts_row: Option<usize>,
    /// Row of the block table, which is the token's place in `last`.
    pub batch_idx: usize,
    /// Absolute position of the token that is chosen.
    pub position: u32,
}

/// Sampling parameters of one row, as the kernels read them.
pub fn row_sampling(params: &SamplingParams, place: RowPlace) -> RowSampling {
    let greedy = params.temperature < MIN_TEMPERATURE;
    let index = |row: Option<usize>| row.map_or(-1, |row| row as i32);
    RowSampling {
        seed: params.seed,
        tempering: if greedy { 0.0 } else { LOG2_E / params.temperature },
        top_p: params.top_p,
        min_p: params.min_p,
        repetition: params.repetition_penalty,
        presence: params.presence_penalty,
        frequency: params.frequency_penalty,
        top_k: i32::try_from(params.top_k).unwrap_or(i32::MAX),
        token_counts_row: index(place.token_counts_row),
        position: place.position,
        top_logprobs: i32::from(params.top_logprobs),
        row: index(place.row),
        batch_idx: place.batch_idx as i32,
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

/// Chooses a token for each row: the three kernels of `plan`, in order.
pub fn sample(plan: &SamplingPlan, buffers: &SamplerBuffers) -> [Launch<SampleParams>; 3] {
    let sums = |index: usize| buffers.sums + (index * plan.sums * 4) as u64;
    let params = SampleParams {
        logits: buffers.logits as *const _,
        row_sampling: buffers.row_sampling as *const _,
        token_counts: buffers.token_counts as *mut _,
        weights: buffers.weights as *mut _,
        block_max: sums(0) as *mut _,
        block_raw_max: sums(1) as *mut _,
        block_sums: sums(2) as *mut _,
        block_raw_sums: sums(3) as *mut _,
        block_broken: sums(4) as *mut _,
        sampled: buffers.sampled as *mut _,
        last: buffers.last as *mut _,
        step_seq: buffers.step_seq as *const _,
        team_sums: buffers.team_sums as *mut _,
        band: buffers.band as *mut _,
        band_count: buffers.band_count as *mut _,
        team_barriers: buffers.team_barriers as *mut _,
        rows: plan.rows as i32,
        vocab: plan.vocab as i32,
        stride: buffers.stride as i32,
        blocks: plan.blocks as i32,
    };
    plan.launches.map(|plan| Launch { plan, params })
}

/// Rewrites requests' token counts: `jobs` `[jobs, 4]` i32 (row or -1, first token, prompt tokens,
/// output tokens) over `tokens` i32.
pub fn token_counts(
    plan: &LaunchPlan,
    vocab: usize,
    counts: CUdeviceptr,
    tokens: CUdeviceptr,
    jobs: CUdeviceptr,
) -> Launch<TokenCountsParams> {
    let params = TokenCountsParams {
        token_counts: counts as *mut _,
        tokens: tokens as *const _,
        jobs: jobs as *const _,
        vocab: vocab as i32,
        reserved: 0,
    };
    Launch { plan: *plan, params }
}
