//! Launches of attention. The caller gives the addresses, and of the cache the strides and the
//! window; heads, scale and splits are the plan's.

use super::Launch;
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::attention::split::PrefillSplit;
use crate::cuda::plan::attention::{DecodePlan, Heads};
use std::f32::consts::LOG2_E;
use trail_ptx::params::{
    DecodeAttentionParams, PagedKv, PrefillAttentionParams, WgmmaAttentionParams,
};

/// Factor of the scores, log2(e) / sqrt(head_dim): the exponentials are powers of two.
fn scale(head_dim: usize) -> f32 {
    LOG2_E / (head_dim as f32).sqrt()
}

/// The window of [`PagedKv`]: 0 for all tokens.
pub fn window(tokens: Option<usize>) -> i32 {
    tokens.map_or(0, |tokens| i32::try_from(tokens).unwrap_or(i32::MAX))
}

fn paged(heads: Heads, kv: PagedKv) -> PagedKv {
    PagedKv { kv_heads: heads.kv_heads as i32, group: heads.group as i32, ..kv }
}

/// Attention of decode rows. The workspaces have room for `plan.partial_out` and
/// `plan.partial_sums`; `tile_counters` are `plan.tile_counters`, zero before the first launch, and
/// every launch leaves them zero.
pub fn attention_decode(
    plan: &DecodePlan,
    params: DecodeAttentionParams,
) -> Launch<DecodeAttentionParams> {
    let params = DecodeAttentionParams {
        kv: paged(plan.heads, params.kv),
        scale: scale(plan.heads.head_dim),
        splits: plan.launch.splits as i32,
        ..params
    };
    Launch { plan: plan.launch, params }
}

/// Attention of segments of prompt rows. The workspaces have room for what
/// [`PrefillSplit::workspace`] says of [`PrefillSplit::parts`], or by mma.sync, where no tile is
/// cut, of a total for each block of `plan`; `split` is that which the plan was made for.
pub fn attention_prefill(
    plan: &LaunchPlan,
    heads: Heads,
    split: &PrefillSplit,
    params: PrefillAttentionParams,
) -> Launch<PrefillAttentionParams> {
    let params = PrefillAttentionParams {
        kv: paged(heads, params.kv),
        scale: scale(heads.head_dim),
        splits: split.splits as i32,
        cut_tiles: split.cut_tiles as i32,
        ..params
    };
    Launch { plan: *plan, params }
}

/// As [`attention_prefill`], on Hopper; `params.pool` is of the pool of `params.base`.
pub fn attention_wgmma(
    plan: &LaunchPlan,
    heads: Heads,
    split: &PrefillSplit,
    params: WgmmaAttentionParams,
) -> Launch<WgmmaAttentionParams> {
    let Launch { plan, params: base } = attention_prefill(plan, heads, split, params.base);
    Launch { plan, params: WgmmaAttentionParams { base, ..params } }
}

/// The sum of the parts of cut tiles, behind either of the two; `None` where no tile is cut.
pub fn attention_merge(
    heads: Heads,
    split: &PrefillSplit,
    params: PrefillAttentionParams,
) -> Option<Launch<PrefillAttentionParams>> {
    split.merge(heads).map(|plan| attention_prefill(&plan, heads, split, params))
}
