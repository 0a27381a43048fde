//! TRAIL with a share c that follows the cost of a victim.

use super::trail::{Trail, TrailPolicy, Variant, remaining};
use crate::{Policy, RequestState};

/// TRAIL whose window closes earlier while the KV cache is short.
///
/// A victim that loses its KV is recomputed, at a cost of `prefill_weight` times its tokens; one
/// that keeps it costs nothing. So for each request c falls from `trail.c` to 0 with the pressure
/// on the cache and with the cost of its recomputation relative to the output that it still needs.
/// A request that is past its window stays so.
///
/// Source: none; beyond the papers. TRAIL (section 3.3) tunes one constant c for a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrailAuto {
    /// TRAIL's parameters; c is the share without pressure.
    pub trail: Trail,
}

impl TrailAuto {
    /// The policy, for [`crate::Scheduler::new`].
    pub fn policy(self) -> impl Policy + use<> {
        let variant = Variant::Auto { is_past: Vec::new(), pressure: 0.0 };
        TrailPolicy::bounded("trail-auto", self.trail, variant)
    }
}

impl Default for TrailAuto {
    /// c = 1 without pressure.
    fn default() -> Self {
        TrailAuto { trail: Trail { c: 1.0, ..Trail::default() } }
    }
}

/// Share of the cache below which a victim is not expected to lose its KV.
const FREE_SHARE: f32 = 0.5;

/// Output tokens that cost as much as the prefill of one, where the ranking has no weight.
const PREFILL_WEIGHT: f32 = 0.1;

/// Probability that a victim loses its KV, taken as linear in the used share above [`FREE_SHARE`].
pub(super) fn pressure(used: u32, num_blocks: u32) -> f32 {
    ((used as f32 / num_blocks as f32 - FREE_SHARE) / (1.0 - FREE_SHARE)).clamp(0.0, 1.0)
}

/// The share c for `request`.
pub(super) fn share(c: f32, pressure: f32, request: &RequestState) -> f32 {
    let cost = PREFILL_WEIGHT * request.tokens() as f32;
    c * (1.0 - pressure * cost / (cost + remaining(request)))
}
