//! A request of a sample, and what is drawn for it.

use std::cmp::Ordering;

use trail_platform::rng::Rng;
use trail_scheduler::LiveRequest;

use super::history::History;

/// A float with its total order, for heaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ordered(pub(super) f64);

impl Eq for Ordered {}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A request of the sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// True output tokens left.
    pub(super) left: f64,
    /// Place in the order: lower first. Begins with `priority`.
    pub(super) rank: f64,
    /// Its priority, as a part of the rank.
    pub(super) priority: f64,
    /// Tokens to compute before the next one.
    pub(super) prefill: f64,
    /// KV tokens that it needs.
    pub(super) kv: f64,
    /// Seconds from now; below 0 for a request of the queue.
    pub(super) arrival_s: f64,
    /// Output tokens in which it may be preempted still.
    pub(super) preemptable: f64,
    /// True before its first token.
    pub(super) is_new: bool,
    /// Output tokens until it is ranked by what it has shown; 0 where it is.
    pub(super) trial: f64,
    /// It precedes those ranked by length, by arrival.
    pub(super) is_overdue: bool,
    /// Count of tokens at which it took its place; `None` outside the batch.
    pub(super) since: Option<f64>,
    /// Number of times it left the batch.
    pub(super) version: u32,
    pub(super) ended: bool,
}

/// Draws the output tokens that `request` has left.
pub(super) fn remaining(request: &LiveRequest, history: &History, rng: &mut Rng) -> f64 {
    let generated = f64::from(request.generated);
    let max = f64::from(request.max_tokens) - generated;
    let left = match request.quantiles {
        Some(quantiles) => by_quantiles(quantiles.map(f64::from), rng),
        None => {
            let expected = request.first_prediction.map(f64::from);
            history.length(expected, generated, rng) - generated
        }
    };
    left.clamp(1.0, max.max(1.0))
}

/// A draw from the distribution with these 10 %, 50 % and 90 % quantiles: linear in between, and an
/// exponential tail.
fn by_quantiles([p10, p50, p90]: [f64; 3], rng: &mut Rng) -> f64 {
    let at = rng.uniform();
    match at {
        at if at < 0.1 => p10 * at / 0.1,
        at if at < 0.5 => p10 + (p50 - p10) * (at - 0.1) / 0.4,
        at if at < 0.9 => p50 + (p90 - p50) * (at - 0.5) / 0.4,
        _ => p90 + 0.6 * (p90 - p50) * rng.exponential(),
    }
}
