//! The pace of prefill for a model: its prefill costs, and the chunks of a batch.

use std::time::Duration;

use trail_scheduler::{PrefillPace, PrefillWork, StepCost};

use crate::backend::Batch;
use crate::model::Model;

/// A pace that bounds the gap to `max_gap`; zero for no bound. `simulated`: the step costs of a
/// simulated clock.
pub(super) fn prefill_pace(
    max_gap: Duration,
    model: &Model,
    simulated: Option<StepCost>,
) -> PrefillPace {
    match simulated {
        Some(cost) => PrefillPace::of(max_gap, &cost),
        None => PrefillPace::measured(max_gap, context_ratio(model)),
    }
}

/// The prefill chunks of `batch`: its segments of several rows, draft rows aside.
pub(super) fn prefill_work(batch: &Batch) -> PrefillWork {
    let mut work = PrefillWork::default();
    for segment in &batch.segments {
        work.add(segment.start, segment.len - segment.drafts);
    }
    work
}

/// Multiply-adds per context token over those per prompt token. Attention reaches a lower rate than
/// the matrix products, so measured costs at short contexts understate long ones, and those at long
/// contexts overstate short ones: within a prompt the mean follows, and a new prompt starts with a
/// chunk that is rather too short.
fn context_ratio(model: &Model) -> f64 {
    let per_token = model.layer_weights_per_token();
    let per_context_token = 2 * model.config.q_size() * model.config.num_layers;
    per_context_token as f64 / per_token as f64
}
