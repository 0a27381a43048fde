//! The options of the rank that a probe's file names, in a policy.

use trail_probe::RankOptions;
use trail_scheduler::policies::{PolicyKind, Trail, TrailAuto};

/// `policy` with the options that a probe's file names, if it is `trail` or `trail-auto`, for which
/// `trail-rt probe train` chooses them. The share of the first prediction was chosen with a trained
/// length predictor: leave it out of `options` if first predictions are another's.
pub fn with_rank_options(mut policy: PolicyKind, options: RankOptions) -> PolicyKind {
    if let PolicyKind::Trail(Trail { ranking, .. })
    | PolicyKind::TrailAuto(TrailAuto { trail: Trail { ranking, .. } }) = &mut policy
    {
        ranking.min_run_tokens = options.min_run_tokens.unwrap_or(ranking.min_run_tokens);
        ranking.express = options.express.unwrap_or(ranking.express);
        ranking.initial_share = options.initial_share.unwrap_or(ranking.initial_share);
    }
    policy
}
