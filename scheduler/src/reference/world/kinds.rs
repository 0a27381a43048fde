//! Policies of the random worlds.

use crate::policies::{
    Classification, Gittins, InitialLength, Isrtf, Ltr, Mlfq, Oracle, Po, PolicyKind, Ranking, Rr,
    RrSjf, Sjf, Trail, TrailAuto, TrailBert,
};
use trail_platform::rng::Rng;

/// Policies of the worlds, each with random parameters.
pub(super) const KINDS: usize = 18;

/// The policies, with bounds short enough to be reached in a world.
pub(super) fn kinds(rng: &mut Rng) -> [PolicyKind; KINDS] {
    let c = rng.below(11) as f32 / 10.0;
    let starvation_threshold = rng.below(12) as u32;
    let ltr = Ltr { starvation_threshold, priority_quantum: 1 + rng.below(4) as u32 };
    let mlfq = Mlfq {
        quantum_s: 0.25 * rng.below(8) as f64 + 0.1,
        growth: 1.0 + rng.below(3) as f64,
        levels: 1 + rng.below(4) as u32,
        starvation_s: rng.below(8) as f64,
        prefill_token_s: 0.01 * rng.below(3) as f64,
    };
    let trail = Trail { c, r: InitialLength::Mean, ranking: ranking(rng) };
    let tokens = 1 + rng.below(9) as u32;
    [
        PolicyKind::Fcfs,
        PolicyKind::Sjf(Sjf::PAPER),
        PolicyKind::Sjf(Sjf { ranking: trail.ranking }),
        PolicyKind::Trail(Trail::paper(c)),
        PolicyKind::Trail(trail),
        PolicyKind::TrailAuto(TrailAuto { trail }),
        PolicyKind::Gittins(Gittins { trail }),
        PolicyKind::TrailBert(TrailBert { c }),
        PolicyKind::SRPT,
        PolicyKind::Oracle(Oracle { c: Some(c) }),
        PolicyKind::Ltr(ltr),
        PolicyKind::Ltr(Ltr { starvation_threshold: 1, priority_quantum: 1 }),
        PolicyKind::Classification(Classification { bucket_tokens: tokens }),
        PolicyKind::Po(Po { perception_tokens: tokens, ranking: trail.ranking }),
        PolicyKind::Mlfq(mlfq),
        PolicyKind::Isrtf(Isrtf { window_tokens: tokens }),
        PolicyKind::Rr(Rr { steps_before_preemption: tokens }),
        PolicyKind::RrSjf(RrSjf { steps_before_preemption: tokens }),
    ]
}

/// Options of the rank, each off in some worlds.
fn ranking(rng: &mut Rng) -> Ranking {
    Ranking {
        min_run_tokens: rng.below(6) as u32,
        tail_bound: [0.0, 0.2, 0.9][rng.below(3) as usize],
        express: [0.0, 0.6, 2.0][rng.below(3) as usize],
        prefill_weight: [0.0, 0.3][rng.below(2) as usize],
        initial_share: [0.0, 0.4][rng.below(2) as usize],
    }
}
