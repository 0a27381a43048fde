//! Per-row sampling parameters. Written once when a request takes a row of the logits; afterwards
//! only the position changes.

use super::layout::{Layout, NONE, SAMPLING_WORDS};
use super::token_masks::TokenMasks;
use crate::backend::SamplingInputs;
use crate::cuda::launch::row_sampling;
use crate::cuda::plain;
use crate::cuda::step_metadata::StepMetadata;
use std::mem::offset_of;
use trail_ptx::params::RowSampling;

const POSITION: usize = offset_of!(RowSampling, position) / 4;
const ROW: usize = offset_of!(RowSampling, row) / 4;
const MASK_ROW: usize = offset_of!(RowSampling, mask_row) / 4;

/// A row whose logits are sampled.
#[derive(Clone, Copy)]
pub(super) struct SampledRow {
    /// Row of the logits.
    pub(super) index: usize,
    /// Row on the device.
    pub(super) row: u32,
    /// Index of the request.
    pub(super) request: u32,
    /// Position of the token that is chosen.
    pub(super) position: u32,
    /// Place of its chosen token, and of its token counts: the request's batch slot, or beyond all
    /// slots that of a draft token.
    pub(super) place: u32,
    /// Generation of the slot; `None` for a draft token.
    pub(super) generation: Option<u32>,
}

/// Sampling parameters by row of the logits.
pub(super) struct RowSamplings {
    layout: Layout,
    /// By row of the logits: the request whose parameters the metadata has there.
    written: Box<[Option<(u32, u32)>]>,
    /// Rows of the logits that this step samples, in order of segments.
    sampled_rows: Vec<u32>,
}

impl RowSamplings {
    pub(super) fn new(layout: Layout, rows: usize) -> RowSamplings {
        let written = vec![None; rows].into();
        RowSamplings { layout, written, sampled_rows: Vec::with_capacity(rows) }
    }

    pub(super) fn begin(&mut self) {
        self.sampled_rows.clear();
    }

    /// Rows of the logits that the step samples, in order of segments.
    pub(super) fn sampled_rows(&self) -> &[u32] {
        &self.sampled_rows
    }

    /// Writes the parameters of `sampled`.
    pub(super) fn write(
        &mut self,
        sampled: SampledRow,
        sampling: &dyn SamplingInputs,
        masks: &mut TokenMasks,
        metadata: &mut StepMetadata,
    ) {
        let SampledRow { index, row, request, position, place, generation } = sampled;
        self.sampled_rows.push(index as u32);
        metadata.set(self.layout.logits_row + index, row);
        let first = self.layout.sampling + index * SAMPLING_WORDS;
        let input = sampling.of(request);
        // Tokens of the answer before the one that is chosen: the draft tokens among them are known
        // to the constraint, which forces them.
        let generated = (position as usize).saturating_sub(input.prompt.len());
        let allowed = input.allowed.map(|tokens| tokens.after(generated));
        let is_masked = allowed.is_some_and(|allowed| masks.set(index, &allowed));
        let mask_row = if is_masked { index as u32 } else { NONE };
        let owner = generation.map(|generation| (place, generation));
        if owner.is_some() && self.written[index] == owner {
            metadata.set(first + POSITION, position);
            metadata.set(first + ROW, index as u32);
            metadata.set(first + MASK_ROW, mask_row);
            return;
        }
        let params = input.params;
        let batch_idx = place as i32;
        let row = RowSampling {
            row: index as i32,
            token_counts_row: if params.has_penalties() { batch_idx } else { -1 },
            batch_idx,
            position,
            mask_row: mask_row as i32,
            ..row_sampling(params)
        };
        metadata.set_all(first, &words(&row));
        self.written[index] = owner;
    }

    /// Row `index` of the logits is not sampled.
    pub(super) fn skip(&mut self, index: usize, metadata: &mut StepMetadata) {
        metadata.set(self.layout.sampling + index * SAMPLING_WORDS + ROW, NONE);
    }
}

/// As words of the metadata.
fn words(sampling: &RowSampling) -> [u32; SAMPLING_WORDS] {
    plain::read(plain::bytes_of(std::slice::from_ref(sampling)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SamplingParams;

    #[test]
    fn words_are_where_the_kernel_looks() {
        let sampling = SamplingParams { seed: 0x1122_3344_5566_7788, ..SamplingParams::default() };
        let words =
            words(&RowSampling { row: 3, batch_idx: 5, position: 99, ..row_sampling(&sampling) });
        assert_eq!(words[..2], [0x5566_7788, 0x1122_3344]);
        assert_eq!(
            (words[POSITION], words[ROW], words[ROW + 1], words[MASK_ROW]),
            (99, 3, 5, NONE)
        );
    }
}
