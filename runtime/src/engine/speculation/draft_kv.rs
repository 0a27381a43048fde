//! The rows of each KV block that the draft model has computed.

use std::ops::Range;

use crate::backend::BLOCK_TOKENS;

/// By block, which the model and its draft model have in common: the number of its first rows whose
/// KV the draft model has, of the tokens that the model has there.
///
/// A row's KV is a function of the tokens up to it. So a block that requests share, or that one
/// finds by its content, needs no row twice; one that is evicted and used for other tokens is
/// computed by the model from its first row on, which [`DraftKv::overwrite`] sees.
pub(super) struct DraftKv(Box<[u8]>);

impl DraftKv {
    pub(super) fn new(num_blocks: usize) -> DraftKv {
        DraftKv(vec![0; num_blocks].into())
    }

    /// Records that the model computes the positions `rows` of a request with `blocks`: the draft
    /// model's rows there were for other tokens.
    pub(super) fn overwrite(&mut self, blocks: &[u32], rows: Range<usize>) {
        for (at, block) in blocks_of(blocks, &rows) {
            let first = rows.start.saturating_sub(at * BLOCK_TOKENS) as u8;
            let have = &mut self.0[block];
            *have = first.min(*have);
        }
    }

    /// Records that the draft model computes `rows`, a part of a [run](Self::first_missing).
    pub(super) fn compute(&mut self, blocks: &[u32], rows: Range<usize>) {
        for (at, block) in blocks_of(blocks, &rows) {
            let have = (rows.end - at * BLOCK_TOKENS).min(BLOCK_TOKENS);
            self.0[block] = have as u8;
        }
    }

    /// The first run of positions before `end` that the draft model lacks; empty if it has all.
    pub(super) fn first_missing(&self, blocks: &[u32], end: usize) -> Range<usize> {
        let mut starts = self.missing_runs(blocks, end);
        let Some(first) = starts.next() else { return end..end };
        let mut run = first;
        for next in starts {
            if next.start != run.end {
                break;
            }
            run.end = next.end;
        }
        run
    }

    /// The number of positions before `end` that the draft model lacks.
    pub(super) fn missing(&self, blocks: &[u32], end: usize) -> usize {
        self.missing_runs(blocks, end).map(|run| run.len()).sum()
    }

    /// The positions before `end` that the draft model lacks, block by block.
    fn missing_runs(&self, blocks: &[u32], end: usize) -> impl Iterator<Item = Range<usize>> {
        let blocks = blocks[..end.div_ceil(BLOCK_TOKENS)].iter().enumerate();
        let run = move |(at, &block): (usize, &u32)| {
            let first = at * BLOCK_TOKENS;
            first + usize::from(self.0[block as usize])..end.min(first + BLOCK_TOKENS)
        };
        blocks.map(run).filter(|run| !run.is_empty())
    }
}

/// The blocks of the positions `rows` of a request, with their indices in its table, `blocks`.
fn blocks_of(blocks: &[u32], rows: &Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let first = rows.start / BLOCK_TOKENS;
    let ids = blocks[first..rows.end.div_ceil(BLOCK_TOKENS)].iter();
    ids.enumerate().map(move |(at, &block)| (first + at, block as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cross_blocks_and_end_at_rows_that_are_there() {
        let (mut kv, blocks) = (DraftKv::new(8), [3, 5, 0, 7]);
        assert_eq!(kv.first_missing(&blocks, 50), 0..50);
        kv.compute(&blocks, 0..20);
        assert_eq!(kv.first_missing(&blocks, 50), 20..50);
        assert_eq!(kv.first_missing(&blocks, 20), 20..20);
        kv.compute(&blocks, 20..64);
        assert_eq!((kv.first_missing(&blocks, 64), kv.missing(&blocks, 64)), (64..64, 0));
        // Another request uses the second block for its own tokens.
        kv.overwrite(&[6, 5], 7..20);
        assert_eq!(kv.first_missing(&blocks, 64), 16..32);
        kv.overwrite(&blocks, 60..61);
        assert_eq!((kv.first_missing(&blocks, 64), kv.missing(&blocks, 64)), (16..32, 20));
        kv.compute(&blocks, 16..32);
        assert_eq!(kv.first_missing(&blocks, 64), 60..64);
    }

    /// Rejected draft tokens: the model computes their positions again.
    #[test]
    fn rows_of_rejected_tokens_are_missing() {
        let (mut kv, blocks) = (DraftKv::new(2), [1, 0]);
        kv.overwrite(&blocks, 20..21);
        kv.compute(&blocks, 0..25);
        kv.overwrite(&blocks, 22..23);
        assert_eq!(kv.first_missing(&blocks, 23), 22..23);
        assert_eq!(kv.missing(&blocks, 22), 0);
    }
}
