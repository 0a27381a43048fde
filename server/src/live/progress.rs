//! Progress of an answer, as the chunks of its stream report it.

use serde::Serialize;
use trail_simulator::forecast::Interval;
use utoipa::ToSchema;

use super::frame::{LiveRow, milliseconds};

/// Expectation of the rest of an answer.
#[derive(Serialize, ToSchema, Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// Median of the remaining tokens.
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
    /// Of an answer that has ended.
    pub(crate) const ENDED: Progress = Progress {
        remaining_tokens: Some(0.0),
        remaining_interval: Some([0.0; 2]),
        eta_ms: Some(0),
        eta_interval_ms: Some([0; 2]),
    };

    /// By `row`, `elapsed_s` after its frame, when the answer has `tokens`.
    pub(super) fn of_row(row: &LiveRow, elapsed_s: f64, tokens: u32) -> Progress {
        let since = tokens.saturating_sub(row.request.generated);
        let last = row.last(elapsed_s, since);
        Progress::new(row.remaining, row.interval, since as f32).or_last(last)
    }

    /// By the length that was expected on arrival, when the answer has `tokens`: no frame has it
    /// yet.
    pub(super) fn of_arrival(length: Interval, tokens: u32) -> Progress {
        let Interval { low, median, high } = length;
        Progress::new(Some(median as f32), Some([low as f32, high as f32]), tokens as f32)
    }

    /// By tokens left when there were `since` fewer. One that has not ended has one left.
    fn new(remaining: Option<f32>, interval: Option<[f32; 2]>, since: f32) -> Progress {
        let left = |of: f32| (10.0 * (of - since).max(1.0)).round() / 10.0;
        Progress {
            remaining_tokens: remaining.map(left),
            remaining_interval: interval.map(|ends| ends.map(left)),
            ..Progress::default()
        }
    }

    /// The same with `last` seconds left, if it has no time.
    pub(super) fn or_last(self, last: Option<Interval>) -> Progress {
        let Some([low, median, high]) = last.map(milliseconds).filter(|_| self.eta_ms.is_none())
        else {
            return self;
        };
        Progress { eta_ms: Some(median), eta_interval_ms: Some([low, high]), ..self }
    }
}
