//! Layout of a step's metadata: the first word of each array.

use crate::backend::BLOCK_TOKENS;
use trail_ptx::DevicePtr;
use trail_ptx::params::RowSampling;

/// Words of one row's [`RowSampling`].
pub(super) const SAMPLING_WORDS: usize = size_of::<RowSampling>() / 4;
/// Words of a prefill segment, of a tile of queries, of a segment for the tap's sums, of a staged
/// row's inputs beside its activation.
pub(super) const SEGMENT_WORDS: usize = 4;
pub(super) const TILE_WORDS: usize = 2;
pub(super) const SUM_WORDS: usize = 8;
pub(super) const INPUT_WORDS: usize = 4;
/// Value of an index that names nothing: a padding row, a free batch slot.
pub(super) const NONE: u32 = u32::MAX;

/// Largest step: bounds of all buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows (tokens) of a batch.
    pub rows: usize,
    /// Segments of a batch, and so batch slots.
    pub segments: usize,
    /// Draft tokens of a batch.
    pub drafts: usize,
    /// Requests in the engine: request indices are below it.
    pub requests: usize,
    /// Tokens of a request.
    pub context: usize,
}

impl StepLimits {
    /// Blocks of a request.
    pub(super) fn blocks(&self) -> usize {
        self.context.div_ceil(BLOCK_TOKENS)
    }
}

/// First words of the arrays; those of several words an element begin at a multiple of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The step's number, modulo 2^32 `[1]`.
    pub(super) number: usize,
    /// `[rows]`, padding rows included.
    pub(super) token: usize,
    pub(super) position: usize,
    pub(super) batch_idx: usize,
    pub(super) tap_row: usize,
    /// Row of each row of logits `[logits]`.
    pub(super) logits_row: usize,
    /// `[logits, SAMPLING_WORDS]`
    pub(super) sampling: usize,
    /// `[segments, SEGMENT_WORDS]`
    pub(super) segments: usize,
    /// `[tiles, TILE_WORDS]`
    pub(super) tiles: usize,
    /// Decode rows, padded, then prefill segments `[2 * segments, SUM_WORDS]`
    pub(super) sums: usize,
    /// `[staged rows, INPUT_WORDS]`
    pub(super) probe_inputs: usize,
    /// `[batch slots, max_blocks]`
    pub(super) table: usize,
    pub(super) max_blocks: usize,
    /// Number of words.
    pub(super) words: usize,
    /// Number of words that a step can change, block tables aside.
    pub(super) usual: usize,
}

impl Layout {
    /// Of steps within `limits`, with up to `rows` rows and `logits` rows of logits, padding
    /// included, `tiles` tiles, and `staged` rows for a probe on the device.
    pub(super) fn new(
        limits: &StepLimits,
        rows: usize,
        logits: usize,
        tiles: usize,
        staged: usize,
    ) -> Layout {
        let mut words = 0;
        let mut array = |length: usize| {
            let first = words;
            words += length.next_multiple_of(4);
            first
        };
        let max_blocks = limits.blocks();
        let mut layout = Layout {
            number: array(1),
            token: array(rows),
            position: array(rows),
            batch_idx: array(rows),
            tap_row: array(rows),
            logits_row: array(logits),
            sampling: array(logits * SAMPLING_WORDS),
            segments: array(limits.segments * SEGMENT_WORDS),
            tiles: array(tiles * TILE_WORDS),
            sums: array(2 * limits.segments * SUM_WORDS),
            probe_inputs: array(staged * INPUT_WORDS),
            table: array(limits.segments * max_blocks),
            max_blocks,
            words: 0,
            usual: 0,
        };
        layout.words = words;
        layout.usual = layout.table;
        layout
    }

    /// Device addresses of the arrays in a metadata that begins at `base`.
    pub(super) fn addresses(&self, base: DevicePtr<u32>) -> Addresses {
        let word = |index: usize| base.add(index).cast();
        Addresses {
            number: base.add(self.number),
            token: word(self.token),
            position: word(self.position),
            batch_idx: word(self.batch_idx),
            tap_row: word(self.tap_row),
            logits_row: word(self.logits_row),
            sampling: base.add(self.sampling).cast(),
            segments: word(self.segments),
            tiles: word(self.tiles),
            sums: word(self.sums),
            probe_inputs: word(self.probe_inputs),
            table: word(self.table),
            max_blocks: self.max_blocks as i32,
        }
    }
}

/// Device addresses of the arrays of [`Layout`], as kernels get them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) number: DevicePtr<u32>,
    pub(super) token: DevicePtr<i32>,
    pub(super) position: DevicePtr<i32>,
    pub(super) batch_idx: DevicePtr<i32>,
    pub(super) tap_row: DevicePtr<i32>,
    pub(super) logits_row: DevicePtr<i32>,
    pub(super) sampling: DevicePtr<RowSampling>,
    pub(super) segments: DevicePtr<i32>,
    pub(super) tiles: DevicePtr<i32>,
    pub(super) sums: DevicePtr<i32>,
    pub(super) probe_inputs: DevicePtr<i32>,
    pub(super) table: DevicePtr<i32>,
    /// Entries of a row of `table`.
    pub(super) max_blocks: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_follow_each_other_aligned() {
        let limits = StepLimits { rows: 37, segments: 5, drafts: 0, requests: 9, context: 100 };
        let layout = Layout::new(&limits, 64, 8, 11, 3);
        let firsts = [
            layout.number,
            layout.token,
            layout.position,
            layout.batch_idx,
            layout.tap_row,
            layout.logits_row,
            layout.sampling,
            layout.segments,
            layout.tiles,
            layout.sums,
            layout.probe_inputs,
            layout.table,
        ];
        assert!(firsts.is_sorted() && firsts.iter().all(|first| first % 4 == 0));
        assert_eq!(layout.sampling - layout.logits_row, 8);
        assert_eq!(layout.segments - layout.sampling, 8 * 16);
        assert_eq!(layout.table - layout.probe_inputs, 3 * 4);
        assert_eq!(layout.max_blocks, 7);
        assert_eq!(layout.words, layout.table + 36);
    }
}
