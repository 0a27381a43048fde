//! Progress of an answer, as the chunks of its stream report it.

use serde::Serialize;
use utoipa::ToSchema;

use super::frame::LiveRow;

/// Expectation of the rest of an answer.
#[derive(Serialize, ToSchema, Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// Expected remaining tokens.
    #[schema(required)]
    remaining_tokens: Option<f32>,
    /// Their interval of 80 %.
    #[schema(required)]
    remaining_interval: Option<[f32; 2]>,
    /// Milliseconds until the last token.
    #[schema(required)]
    eta_ms: Option<u64>,
    /// Their interval of 80 %.
    #[schema(required)]
    eta_interval_ms: Option<[u64; 2]>,
}

impl Progress {
    /// By `row`, `elapsed_s` after its frame, when the answer has `tokens`.
    pub(super) fn new(row: &LiveRow, elapsed_s: f64, tokens: u32) -> Progress {
        let since = tokens.saturating_sub(row.request.generated) as f32;
        let left = |of: f32| (10.0 * (of - since).max(0.0)).round() / 10.0;
        let [_, last] = row.times_ms(elapsed_s);
        Progress {
            remaining_tokens: row.request.remaining.map(left),
            remaining_interval: row.interval().map(|ends| ends.map(left)),
            eta_ms: last.map(|[_, median, _]| median),
            eta_interval_ms: last.map(|[low, _, high]| [low, high]),
        }
    }
}
