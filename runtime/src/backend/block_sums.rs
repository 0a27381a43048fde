//! Sums of tapped activations, block by block.

use std::ops::Range;

use super::batch::{BLOCK_TOKENS, Segment};
use super::{Batch, RequestKey, TapPlan};

/// Sums over the rows of each request's KV blocks, from which the mean over its prompt is made.
///
/// The rows of a block are added in order, then the sums of the blocks in order. So the mean has
/// the same bits however the prompt was cut into steps, and where its first blocks were computed
/// for another request.
#[derive(Clone, Debug)]
pub(super) struct BlockSums {
    width: usize,
    /// Sum over the full blocks of each request: `[requests, width]`. Memory that is never written
    /// takes no page.
    full: Vec<f32>,
    /// Sum over the rows of its last block: `[requests, width]`.
    last: Vec<f32>,
    /// Mean over the prompt that was completed last: `[width]`.
    mean: Vec<f32>,
    /// `[requests]`: generation of the index, and the position of the next row.
    next: Vec<(u32, u32)>,
    /// Sums of full blocks, `[blocks, width]`; empty where no block is shared.
    of_blocks: Vec<f32>,
}

impl BlockSums {
    pub(super) fn new(width: usize, requests: usize) -> BlockSums {
        BlockSums {
            width,
            full: vec![0.0; requests * width],
            last: vec![0.0; requests * width],
            mean: vec![0.0; width],
            next: vec![(0, 0); requests],
            of_blocks: Vec::new(),
        }
    }

    /// Keeps the sums of full blocks.
    pub(super) fn keep_blocks(&mut self, num_blocks: usize) {
        self.of_blocks = vec![0.0; num_blocks * self.width];
    }

    /// Adds the `rows` `[len, columns]` of `segment`, whose request holds `blocks`, but for those
    /// of draft tokens ([`BlockSums::accept`]). Returns the mean over the prompt if they
    /// complete it.
    pub(super) fn add(
        &mut self,
        segment: &Segment,
        key: &RequestKey,
        blocks: &[u32],
        columns: Range<usize>,
        rows: &[f32],
    ) -> Option<&[f32]> {
        let keeps_blocks = !self.of_blocks.is_empty();
        if segment.start >= key.prompt_len && !keeps_blocks {
            return None;
        }
        let request = segment.request as usize;
        let own = request * self.width + columns.start..request * self.width + columns.end;
        if self.next[request] != (key.generation, segment.start) || segment.start == 0 {
            self.begin(own.clone(), segment.start, blocks, columns.clone());
        }
        let (full, last) = (&mut self.full[own.clone()], &mut self.last[own]);
        let mut is_complete = false;
        let rows = rows.chunks_exact(columns.len()).take((segment.len - segment.drafts) as usize);
        for (position, row) in (segment.start..).zip(rows) {
            let at = position as usize % BLOCK_TOKENS;
            if at == 0 {
                last.fill(0.0);
            }
            add(last, row);
            if position + 1 == key.prompt_len {
                is_complete = true;
                let scale = 1.0 / key.prompt_len as f32;
                let mean = &mut self.mean[columns.clone()];
                for ((mean, full), last) in mean.iter_mut().zip(&*full).zip(&*last) {
                    *mean = (full + last) * scale;
                }
            }
            if at + 1 == BLOCK_TOKENS {
                add(full, last);
                if keeps_blocks {
                    let block = blocks[position as usize / BLOCK_TOKENS] as usize * self.width;
                    self.of_blocks[block + columns.start..block + columns.end]
                        .copy_from_slice(last);
                }
            }
        }
        is_complete.then(|| &self.mean[columns])
    }

    /// Adds the `row` `[width]` of an accepted token of the request at index `request`, after all
    /// rows before it. It lies at `position`, in `block`.
    pub(super) fn accept(&mut self, request: u32, position: u32, block: u32, row: &[f32]) {
        if self.of_blocks.is_empty() {
            return;
        }
        let (own, width) = (request as usize * self.width, self.width);
        let (full, last) = (&mut self.full[own..own + width], &mut self.last[own..own + width]);
        add(last, row);
        self.next[request as usize].1 = position + 1;
        if (position as usize + 1).is_multiple_of(BLOCK_TOKENS) {
            add(full, last);
            self.of_blocks[block as usize * width..][..width].copy_from_slice(last);
        }
    }

    /// Begins a request at position `start`, whose blocks before were computed for another, or for
    /// itself before it lost them.
    fn begin(&mut self, own: Range<usize>, start: u32, blocks: &[u32], columns: Range<usize>) {
        if start > 0 && self.of_blocks.is_empty() {
            return;
        }
        let full = &mut self.full[own];
        full.fill(0.0);
        for &block in &blocks[..start as usize / BLOCK_TOKENS] {
            let block = block as usize * self.width;
            add(full, &self.of_blocks[block + columns.start..block + columns.end]);
        }
    }

    /// Records the step as added, after the last tapped layer.
    pub(super) fn advance(&mut self, batch: &Batch, plan: &TapPlan) {
        for (segment, key) in batch.segments.iter().zip(&plan.keys) {
            self.next[segment.request as usize] =
                (key.generation, segment.start + segment.len - segment.drafts);
        }
    }
}

fn add(sum: &mut [f32], row: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SegmentState;
    use trail_platform::rng::Rng;

    const WIDTH: usize = 3;

    fn segment(request: u32, start: u32, len: u32) -> Segment {
        let num_blocks = (start + len).div_ceil(BLOCK_TOKENS as u32);
        Segment {
            request,
            start,
            len,
            begins: start == 0,
            first_row: 0,
            first_block: 0,
            num_blocks,
            logits: false,
            drafts: 0,
            first_scored: start,
            scored: 0,
            adapter: None,
            state: SegmentState::default(),
        }
    }

    /// The mean over `prompt` `[tokens, WIDTH]` of request `request`, added in chunks of `chunk`
    /// from position `start` on.
    fn mean(
        sums: &mut BlockSums,
        (request, generation): (u32, u32),
        prompt: &[f32],
        (start, chunk): (usize, usize),
        blocks: &[u32],
    ) -> Vec<u32> {
        let tokens = prompt.len() / WIDTH;
        let key = RequestKey { generation, prompt_len: tokens as u32 };
        let mut found = None;
        for first in (start..tokens).step_by(chunk) {
            let len = chunk.min(tokens - first);
            let segment = segment(request, first as u32, len as u32);
            let rows = &prompt[first * WIDTH..][..len * WIDTH];
            let mean = sums.add(&segment, &key, blocks, 0..WIDTH, rows);
            found = mean.map(|mean| mean.iter().map(|value| value.to_bits()).collect());
            let segments = vec![segment];
            let plan = TapPlan { keys: vec![key], ..TapPlan::default() };
            sums.advance(&Batch { segments, ..Batch::default() }, &plan);
        }
        found.expect("the prompt was completed")
    }

    /// The same bits in chunks of any size, and from blocks of another request.
    #[test]
    fn a_mean_depends_on_the_prompt_alone() {
        let mut rng = Rng::new(1);
        let prompt: Vec<f32> = (0..75 * WIDTH).map(|_| rng.normal() as f32).collect();
        let mut sums = BlockSums::new(WIDTH, 2);
        sums.keep_blocks(8);
        let own = [5, 3, 0, 1, 7];
        let whole = mean(&mut sums, (0, 1), &prompt, (0, 75), &own);
        for chunk in [1, 5, 16, 40] {
            assert_eq!(mean(&mut sums, (0, 1), &prompt, (0, chunk), &own), whole, "{chunk}");
        }
        let shared = [5, 3, 0, 2, 6];
        for start in [16, 32, 48] {
            assert_eq!(mean(&mut sums, (1, start as u32), &prompt, (start, 9), &shared), whole);
        }
        let plain: Vec<f64> = (0..WIDTH)
            .map(|at| prompt[at..].iter().step_by(WIDTH).map(|&x| f64::from(x)).sum::<f64>() / 75.0)
            .collect();
        for (bits, plain) in whole.iter().zip(plain) {
            // 75 additions of values near 1: each is off by at most half an ulp of the sum.
            assert!((f64::from(f32::from_bits(*bits)) - plain).abs() < 75.0 * 1e-6, "{plain}");
        }
    }
}
