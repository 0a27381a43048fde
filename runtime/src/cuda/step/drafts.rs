//! Draft tokens of a step whose tapped rows are kept until it is known which of these are right.

use crate::backend::{Batch, Sampled, Segment};
use crate::cuda::plan::step::TapSegment;

/// The kept rows of one segment.
#[derive(Clone, Copy)]
struct Kept {
    /// Result of the row before the first draft token, among the step's.
    result: usize,
    /// Draft tokens.
    count: usize,
    /// The segment of the first draft token, in the kept rows.
    rows: TapSegment,
}

/// The draft tokens of one step.
pub(super) struct Drafts {
    segments: Vec<Kept>,
    /// The tokens, of all segments.
    tokens: Vec<u32>,
}

impl Drafts {
    /// For steps of up to `max` draft tokens.
    pub(super) fn new(max: usize) -> Drafts {
        Drafts { segments: Vec::with_capacity(max), tokens: Vec::with_capacity(max) }
    }

    pub(super) fn begin(&mut self) {
        self.segments.clear();
        self.tokens.clear();
    }

    /// Rows kept so far.
    pub(super) fn kept(&self) -> usize {
        self.tokens.len()
    }

    /// The draft tokens of `segment`, of `batch`, are kept behind its other rows `run`.
    pub(super) fn keep(&mut self, batch: &Batch, segment: &Segment, run: &TapSegment) {
        let before = batch.segments.iter().take_while(|of| of.first_row < segment.first_row);
        let rows = TapSegment {
            first_row: run.kept_row,
            batch_idx: run.batch_idx,
            first_position: run.first_position + run.rows,
            ..TapSegment::default()
        };
        self.segments.push(Kept {
            result: before.map(|of| of.sampled_rows().len()).sum(),
            count: run.kept,
            rows,
        });
        let end = (segment.first_row + segment.len) as usize;
        self.tokens.extend_from_slice(&batch.tokens[end - run.kept..end]);
    }

    /// The kept rows whose tokens are the results of the rows before them: those that count.
    /// `results`: those of the step.
    pub(super) fn accepted<'a>(
        &'a self,
        results: &'a [Sampled],
    ) -> impl Iterator<Item = TapSegment> + 'a {
        self.segments.iter().map(|&Kept { result, count, rows }| {
            let tokens = &self.tokens[rows.first_row..rows.first_row + count];
            let pairs = tokens.iter().zip(&results[result..]);
            let right = pairs.take_while(
                |(draft, result)| matches!(result, Ok(sampled) if sampled.id == **draft),
            );
            TapSegment { rows: right.count(), ..rows }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{MAX_TOP_LOGPROBS, SampledToken};

    #[test]
    fn rows_count_up_to_the_first_wrong_token() {
        let mut batch = Batch::default();
        batch.push(3, 7, &[50], &[0], true);
        batch.push_drafts(4, 17, &[60, 61, 62, 63], &[1, 2]);
        batch.push(5, 0, &[1, 2], &[3], false);
        batch.push_drafts(6, 33, &[70, 71], &[4, 5, 6]);
        let mut drafts = Drafts::new(8);
        drafts.begin();
        for (batch_idx, at) in [(9, 1), (8, 3)] {
            let segment = batch.segments[at];
            let run = TapSegment {
                rows: 1,
                batch_idx: Some(batch_idx),
                first_position: segment.start as usize,
                kept: segment.drafts as usize,
                kept_row: drafts.kept(),
                ..TapSegment::default()
            };
            drafts.keep(&batch, &segment, &run);
        }
        let token = |id| {
            let (logprob, top) = (0.0, [(0, 0.0); MAX_TOP_LOGPROBS]);
            Ok(SampledToken { id, logprob, top, num_top: 0 })
        };
        // Of the decode row, of four rows with two right drafts, of two rows.
        let results = [51, 61, 62, 9, 64, 71, 72].map(token);
        let accepted = |results: &[Sampled]| -> Vec<_> {
            let of = |run: TapSegment| (run.batch_idx, run.first_row, run.rows, run.first_position);
            drafts.accepted(results).map(of).collect()
        };
        assert_eq!(accepted(&results), [(Some(9), 0, 2, 18), (Some(8), 3, 1, 34)]);
        let mut broken = results;
        broken[1] = Err(crate::backend::NonFiniteLogits);
        assert_eq!(accepted(&broken)[0].2, 0);
    }
}
