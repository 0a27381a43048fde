//! The limit on prefill beside decodes, from the costs of past steps.
//!
//! A caller that reads a stream sees the gap between two tokens: the time of a step. A prefill
//! chunk prolongs it, the more so the longer its context. So while a request decodes, chunks are
//! cut to what keeps a step below the bound, or below three steps without prefill where those are
//! slow themselves.

use std::time::Duration;

use crate::prefill_limit::PrefillLimit;
use crate::step_cost::StepCost;

/// Steps without prefill that a step with prefill may last.
const DECODE_STEPS: f64 = 3.0;
/// Share of the bound that a step is planned for: costs grow along a prompt, and steps vary.
const PLANNED_SHARE: f64 = 0.75;
/// Weight of the newest step in the mean time of steps without prefill.
const NEWEST_DECODE: f64 = 0.2;
/// Weight of the newest step in the mean cost of a prompt token: high, as it follows the context.
const NEWEST_TOKEN: f64 = 0.5;

/// Prefill chunks of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillWork {
    tokens: u64,
    /// Context tokens attended to, summed over `tokens`.
    context_tokens: u64,
}

impl PrefillWork {
    /// True if there is no prefill chunk.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Adds a segment of `len` rows from position `start` on; no effect if it is a decode.
    pub fn add(&mut self, start: u32, len: u32) {
        if len > 1 {
            let (start, len) = (u64::from(start), u64::from(len));
            self.tokens += len;
            self.context_tokens += len * start + len * (len + 1) / 2;
        }
    }
}

/// Costs of prefill.
#[derive(Clone, Copy, Debug)]
enum PrefillCost {
    /// Those of a simulated clock.
    Known {
        /// Cost of a prompt token without context, nanoseconds.
        token_ns: f64,
        /// Cost of a context token, nanoseconds.
        context_token_ns: f64,
    },
    /// Measured by the wall clock.
    Measured {
        /// Mean cost of a prompt token without context, nanoseconds; 0 before the first.
        token_ns: f64,
        /// Cost of a context token over that of a prompt token.
        context_ratio: f64,
    },
}

/// Derives the prefill limit of each step.
#[derive(Clone, Copy, Debug)]
pub struct PrefillPace {
    /// Longest gap between two tokens, nanoseconds; 0 for no bound.
    max_gap_ns: f64,
    /// Mean time of a step without prefill, nanoseconds; 0 before the first.
    decode_ns: f64,
    cost: PrefillCost,
}

impl PrefillPace {
    /// A pace that bounds the gap to `max_gap`, zero for no bound, with measured costs.
    /// `context_ratio`: the cost of a context token over that of a prompt token.
    pub fn measured(max_gap: Duration, context_ratio: f64) -> PrefillPace {
        let cost = PrefillCost::Measured { token_ns: 0.0, context_ratio };
        PrefillPace { max_gap_ns: max_gap.as_nanos() as f64, decode_ns: 0.0, cost }
    }

    /// The same with known costs of a prompt token and of a context token, nanoseconds.
    pub fn known(max_gap: Duration, token_ns: f64, context_token_ns: f64) -> PrefillPace {
        let cost = PrefillCost::Known { token_ns, context_token_ns };
        PrefillPace { max_gap_ns: max_gap.as_nanos() as f64, decode_ns: 0.0, cost }
    }

    /// The same with the costs of `cost`. The experts of a mixture count whole: one chunk is enough
    /// to read them all.
    pub fn of(max_gap: Duration, cost: &StepCost) -> PrefillPace {
        let experts = cost.experts.map_or(0.0, |of| of.read * f64::from(of.num_experts));
        let mut pace = PrefillPace::known(max_gap, cost.prefill_token, cost.context_token);
        if pace.max_gap_ns > 0.0 {
            // Not 0, which would be no bound.
            pace.max_gap_ns = (pace.max_gap_ns - experts).max(1.0);
        }
        pace
    }

    /// The limit of the next step.
    pub fn limit(&self) -> Option<PrefillLimit> {
        if self.max_gap_ns == 0.0 {
            return None;
        }
        let gap_ns = self.max_gap_ns.max(DECODE_STEPS * self.decode_ns);
        let ns = PLANNED_SHARE * gap_ns - self.decode_ns;
        Some(match self.cost {
            PrefillCost::Known { token_ns, context_token_ns } => {
                PrefillLimit { ns, token_ns, context_token_ns }
            }
            // Nothing is known yet: the least chunk.
            PrefillCost::Measured { token_ns: 0.0, .. } => {
                PrefillLimit { ns: 0.0, token_ns: 1.0, context_token_ns: 0.0 }
            }
            PrefillCost::Measured { token_ns, context_ratio } => {
                PrefillLimit { ns, token_ns, context_token_ns: token_ns * context_ratio }
            }
        })
    }

    /// Mean time of a step without prefill, seconds; 0 before the first.
    pub fn decode_step_s(&self) -> f64 {
        self.decode_ns * 1e-9
    }

    /// Time that a prompt token without context adds to a step, seconds; 0 before the first.
    pub fn prefill_token_s(&self) -> f64 {
        let (PrefillCost::Known { token_ns, .. } | PrefillCost::Measured { token_ns, .. }) =
            self.cost;
        token_ns * 1e-9
    }

    /// Adds a collected step that took `ns`.
    pub fn record(&mut self, work: PrefillWork, ns: u64) {
        let ns = ns as f64;
        if work.tokens == 0 {
            self.decode_ns = mean(self.decode_ns, ns, NEWEST_DECODE);
        } else if let PrefillCost::Measured { token_ns, context_ratio } = &mut self.cost {
            let tokens = work.tokens as f64 + *context_ratio * work.context_tokens as f64;
            let newest = (ns - self.decode_ns).max(0.0) / tokens;
            *token_ns = mean(*token_ns, newest, NEWEST_TOKEN);
        }
    }
}

/// `mean` with `newest` of the given weight; the first value replaces the 0.
fn mean(mean: f64, newest: f64, weight: f64) -> f64 {
    if mean == 0.0 { newest } else { mean + weight * (newest - mean) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(300);

    fn pace(max_gap: Duration) -> PrefillPace {
        PrefillPace::measured(max_gap, 1e-4)
    }

    #[test]
    fn chunks_of_a_batch_are_its_segments_of_several_rows() {
        let mut work = PrefillWork::default();
        [(9, 1), (4, 3), (0, 2)].into_iter().for_each(|(start, len)| work.add(start, len));
        assert_eq!(work, PrefillWork { tokens: 5, context_tokens: 5 + 6 + 7 + 1 + 2 });
    }

    #[test]
    fn the_limit_is_none_without_a_bound_and_0_before_measurements() {
        assert_eq!(pace(Duration::ZERO).limit(), None);
        let limit = pace(GAP).limit().expect("a bound");
        assert_eq!((limit.ns, limit.token_ns > 0.0), (0.0, true));
    }

    #[test]
    fn the_limit_follows_measured_steps() {
        let mut pace = pace(GAP);
        // 100 tokens at 2 ms each and no context to speak of.
        pace.record(PrefillWork { tokens: 100, context_tokens: 0 }, 200_000_000);
        assert_eq!(pace.limit().map(|limit| (limit.ns, limit.token_ns)), Some((225e6, 2e6)));
        pace.record(PrefillWork::default(), 25_000_000);
        assert_eq!(pace.limit().map(|limit| limit.ns), Some(200e6));
        let costs = [pace.decode_step_s(), pace.prefill_token_s()];
        assert!((costs[0] - 25e-3).abs() < 1e-9 && (costs[1] - 2e-3).abs() < 1e-9, "{costs:?}");
        // A step without prefill of 200 ms: three such may pass.
        (0..100).for_each(|_| pace.record(PrefillWork::default(), 200_000_000));
        let ns = pace.limit().expect("a bound").ns;
        assert!((ns - (0.75 * 600e6 - 200e6)).abs() < 1e3, "{ns}");
        // Costs grow: the next limit has half of the difference.
        pace.record(PrefillWork { tokens: 100, context_tokens: 0 }, 600_000_000);
        let token_ns = pace.limit().expect("a bound").token_ns;
        assert!((token_ns - 3e6).abs() < 1e3, "{token_ns}");
    }
}
