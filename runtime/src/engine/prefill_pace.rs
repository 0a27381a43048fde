//! The limit on prefill beside decodes, from the costs of past steps.
//!
//! A caller that reads a stream sees the gap between two tokens: the time of a step. A prefill
//! chunk prolongs it, the more so the longer its context. So while a request decodes, chunks are
//! cut to what keeps a step below the bound ([`super::EngineBuilder::max_gap`]), or below three
//! steps without prefill where those are slow themselves.

use std::time::Duration;

use trail_scheduler::PrefillLimit;

use super::step_cost::StepCost;
use crate::backend::Batch;
use crate::model::Model;

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
pub(super) struct PrefillWork {
    tokens: u64,
    /// Context tokens attended to, summed over `tokens`.
    context_tokens: u64,
}

impl PrefillWork {
    /// The prefill chunks of `batch`: its segments of several rows.
    pub(super) fn of(batch: &Batch) -> PrefillWork {
        let mut work = PrefillWork::default();
        for segment in batch.segments.iter().filter(|segment| segment.len > 1) {
            let (start, len) = (u64::from(segment.start), u64::from(segment.len));
            work.tokens += len;
            work.context_tokens += len * start + len * (len + 1) / 2;
        }
        work
    }
}

/// Costs of prefill.
#[derive(Clone, Copy, Debug)]
enum PrefillCost {
    /// Those of the simulated clock.
    Simulated(StepCost),
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
pub(super) struct PrefillPace {
    /// Longest gap between two tokens, nanoseconds; 0 for no bound.
    max_gap_ns: f64,
    /// Mean time of a step without prefill, nanoseconds; 0 before the first.
    decode_ns: f64,
    cost: PrefillCost,
}

impl PrefillPace {
    /// A pace that bounds the gap to `max_gap`; zero for no bound. `simulated`: the step costs of a
    /// simulated clock.
    pub(super) fn new(max_gap: Duration, model: &Model, simulated: Option<StepCost>) -> Self {
        let measured =
            || PrefillCost::Measured { token_ns: 0.0, context_ratio: context_ratio(model) };
        PrefillPace {
            max_gap_ns: max_gap.as_nanos() as f64,
            decode_ns: 0.0,
            cost: simulated.map_or_else(measured, PrefillCost::Simulated),
        }
    }

    /// The limit of the next step.
    pub(super) fn limit(&self) -> Option<PrefillLimit> {
        if self.max_gap_ns == 0.0 {
            return None;
        }
        let gap_ns = self.max_gap_ns.max(DECODE_STEPS * self.decode_ns);
        let ns = PLANNED_SHARE * gap_ns - self.decode_ns;
        Some(match self.cost {
            PrefillCost::Simulated(StepCost { prefill_token, context_token, .. }) => {
                PrefillLimit { ns, token_ns: prefill_token, context_token_ns: context_token }
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

    /// Adds a collected step that took `ns`.
    pub(super) fn record(&mut self, work: PrefillWork, ns: u64) {
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

/// Multiply-adds per context token over those per prompt token. Attention reaches a lower rate than
/// the matrix products, so measured costs at short contexts understate long ones, and those at long
/// contexts overstate short ones: within a prompt the mean follows, and a new prompt starts with a
/// chunk that is rather too short.
fn context_ratio(model: &Model) -> f64 {
    let layers = model.weights.layers.iter();
    let matrices = layers.flat_map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down]);
    let per_token: usize = matrices.map(|matrix| matrix.rows * matrix.cols).sum();
    let per_context_token = 2 * model.config.q_size() * model.config.num_layers;
    per_context_token as f64 / per_token as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Dtype;

    const GAP: Duration = Duration::from_millis(300);

    fn pace(max_gap: Duration) -> PrefillPace {
        let model = Model::random("tiny", Dtype::Bf16, 1).expect("a known shape");
        PrefillPace::new(max_gap, &model, None)
    }

    #[test]
    fn chunks_of_a_batch_are_its_segments_of_several_rows() {
        let mut batch = Batch::default();
        batch.push(0, 9, &[1], &[0], true);
        batch.push(1, 4, &[1, 2, 3], &[1], false);
        batch.push(2, 0, &[1, 2], &[2], true);
        let work = PrefillWork { tokens: 5, context_tokens: 5 + 6 + 7 + 1 + 2 };
        assert_eq!(PrefillWork::of(&batch), work);
    }

    #[test]
    fn the_limit_is_none_without_a_bound_and_least_before_any_measurement() {
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
