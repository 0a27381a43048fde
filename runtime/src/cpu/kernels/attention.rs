//! Causal attention of some consecutive rows of one request, for the query heads of one KV head.
//!
//! Online softmax, one KV block after the other from the oldest: blocks lie at absolute positions,
//! so a row meets the same blocks, and does the same arithmetic, in a long prefill chunk as in a
//! decode step. The rows of a call only share the loads: a tile of queries meets each key and value
//! while it is in a register. A row takes no part in blocks outside its window.

use std::ops::Range;

use crate::backend::BLOCK_TOKENS;
use crate::cpu::simd::{MAX_LANES, Simd};

use super::scratch::AttentionScratch;
use super::stored::StoredF32;
use super::swiglu::exp;
use super::tile::{Ahead, Columns, Rows, TILE_COLS, tiles};

/// Queries whose outputs are accumulated together.
const VALUE_QUERIES: usize = 3;
/// Registers of a value that they share.
const VALUE_REGISTERS: usize = 4;

/// Operands of one attention task. Query `row * group + head` belongs to `row` of the run.
pub(crate) struct Attention<'a> {
    /// Queries in, outputs out.
    pub(crate) scratch: &'a mut AttentionScratch,
    /// Rows of the run, at positions `position..`.
    pub(crate) rows: usize,
    /// Query heads of the KV head.
    pub(crate) group: usize,
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// Position of the first row.
    pub(crate) position: usize,
    /// A row attends to itself and the `window - 1` positions before it.
    pub(crate) window: usize,
    /// The KV pool.
    pub(crate) kv: &'a [f32],
    /// Blocks of the request, by position.
    pub(crate) blocks: &'a [u32],
    /// Floats of a block.
    pub(crate) block_len: usize,
    /// Where in a block this layer's and head's keys `[BLOCK_TOKENS][head_dim]` begin.
    pub(crate) keys: usize,
    /// The same for the values.
    pub(crate) values: usize,
}

impl Attention<'_> {
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    pub(super) unsafe fn run<V: Simd>(mut self) {
        let queries = self.rows * self.group;
        let last = self.position + self.rows - 1;
        assert!(self.scratch.max.len() >= queries && self.scratch.head_stride >= self.head_dim);
        self.scratch.max[..queries].fill(f32::NEG_INFINITY);
        self.scratch.sum[..queries].fill(0.0);
        self.scratch.out[..queries * self.scratch.head_stride].fill(0.0);
        let oldest = (self.position + 1).saturating_sub(self.window);
        let (blocks, block_len) = (self.blocks, self.block_len);
        let base = |block: usize| blocks[block] as usize * block_len;
        let newest = last / BLOCK_TOKENS;
        for block in oldest / BLOCK_TOKENS..=newest {
            let begin = base(block);
            let len = BLOCK_TOKENS * self.head_dim;
            let keys = &self.kv[begin + self.keys..][..len];
            // Registers of the last value may reach beyond its head; the pool is padded for it.
            let values = &self.kv[begin + self.values..][..len + MAX_LANES];
            // Blocks are scattered, so the hardware cannot know the next one.
            let to_next = base(newest.min(block + 1)) as isize - begin as isize;
            let active = self.active(block);
            // SAFETY: the slices hold a block; the instructions are the caller's.
            unsafe {
                self.score::<V>(active.clone(), keys.as_ptr(), to_next);
                self.soften::<V>(active.clone(), block);
                self.accumulate::<V>(active, block, values.as_ptr(), to_next);
            }
        }
        for q in 0..queries {
            let out = &mut self.scratch.out[q * self.scratch.head_stride..][..self.head_dim];
            let scale = 1.0 / self.scratch.sum[q];
            out.iter_mut().for_each(|o| *o *= scale);
        }
    }

    /// Queries of which some token of `block` is within reach.
    fn active(&self, block: usize) -> Range<usize> {
        let first_token = block * BLOCK_TOKENS;
        let begin = first_token.saturating_sub(self.position);
        let last_row = (first_token + BLOCK_TOKENS - 1).saturating_add(self.window - 1);
        let end = (last_row - self.position).min(self.rows - 1) + 1;
        begin * self.group..end * self.group
    }

    /// The tokens of `block` that `query` attends to.
    #[inline(always)]
    fn reach(&self, query: usize, block: usize) -> Range<usize> {
        let position = self.position + query / self.group;
        let first_token = block * BLOCK_TOKENS;
        let begin = (position + 1).saturating_sub(self.window).saturating_sub(first_token);
        begin..(position + 1 - first_token).min(BLOCK_TOKENS)
    }

    /// `scores = queries . keys`.
    ///
    /// # Safety
    ///
    /// `keys` must be readable for a block; the CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn score<V: Simd>(&mut self, active: Range<usize>, keys: *const f32, to_next: isize) {
        let stride = self.scratch.head_stride;
        let queries = self.scratch.queries[active.start * stride..active.end * stride].as_ptr();
        let queries = Rows { first: queries, stride, len: active.len() };
        for token in (0..BLOCK_TOKENS).step_by(TILE_COLS) {
            let put = |query: usize, scores: [f32; TILE_COLS]| {
                let at = (active.start + query) * BLOCK_TOKENS + token;
                self.scratch.scores[at..][..TILE_COLS].copy_from_slice(&scores);
            };
            // SAFETY: the tile's keys lie within the block; queries are padded with zeros.
            unsafe {
                let rows = std::array::from_fn(|j| keys.add((token + j) * self.head_dim).cast());
                let keys = Columns { rows, ahead: Ahead::Weights(4 * to_next) };
                tiles::<V, StoredF32>(queries, V::TILE_ROWS, keys, self.head_dim, put);
            }
        }
    }

    /// Scores become exponentials relative to the largest score so far.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn soften<V: Simd>(&mut self, active: Range<usize>, block: usize) {
        for q in active {
            let reach = self.reach(q, block);
            let scratch = &mut *self.scratch;
            let scores = &mut scratch.scores[q * BLOCK_TOKENS..][..BLOCK_TOKENS];
            scores[..reach.start].fill(f32::NEG_INFINITY);
            scores[reach.end..].fill(f32::NEG_INFINITY);
            // SAFETY: `scores` has BLOCK_TOKENS floats, whole registers; the instructions are the
            // caller's.
            unsafe {
                let mut largest = V::splat(scratch.max[q]);
                for at in (0..BLOCK_TOKENS).step_by(V::LANES) {
                    largest = largest.max(V::load(scores.as_ptr().add(at)));
                }
                let max = largest.max_lane();
                let mut sum = V::splat(0.0);
                for at in (0..BLOCK_TOKENS).step_by(V::LANES) {
                    let p = scores.as_mut_ptr().add(at);
                    // Tokens out of reach add e^-87, nothing beside the sum, which is at least 1.
                    let e = exp(V::load(p).sub(V::splat(max)));
                    sum = sum.add(e);
                    e.store(p);
                }
                let [sum, ..] = V::sum4([sum; 4]);
                // e^0 is exactly 1, and usual.
                let decay = if max == scratch.max[q] {
                    1.0
                } else {
                    exp(V::splat(scratch.max[q] - max)).max_lane()
                };
                scratch.max[q] = max;
                scratch.decay[q] = decay;
                scratch.sum[q] = scratch.sum[q] * decay + sum;
            }
        }
    }

    /// `out = out * decay + exponentials . values`.
    ///
    /// # Safety
    ///
    /// `values` must be readable for a block and a register more; the CPU must have `V`'s
    /// instructions.
    #[inline(always)]
    unsafe fn accumulate<V: Simd>(
        &mut self,
        active: Range<usize>,
        block: usize,
        values: *const f32,
        to_next: isize,
    ) {
        let registers = self.head_dim.div_ceil(V::LANES);
        let mut q = active.start;
        while q < active.end {
            let reach = self.reach(q, block);
            let mut queries = VALUE_QUERIES.min(active.end - q);
            while reach != self.reach(q + queries - 1, block) {
                queries -= 1;
            }
            let mut register = 0;
            while register < registers {
                let wide = registers - register >= VALUE_REGISTERS;
                let at = register * V::LANES;
                let values = Values { first: values, at, reach: reach.clone(), to_next };
                // SAFETY: the registers begin within the head; reach lies within the block.
                unsafe {
                    match (queries, wide) {
                        (1, true) => self.add_values::<V, 1, VALUE_REGISTERS>(q, values),
                        (1, false) => self.add_values::<V, 1, 1>(q, values),
                        (2, true) => self.add_values::<V, 2, VALUE_REGISTERS>(q, values),
                        (2, false) => self.add_values::<V, 2, 1>(q, values),
                        (_, true) => {
                            self.add_values::<V, VALUE_QUERIES, VALUE_REGISTERS>(q, values)
                        }
                        (_, false) => self.add_values::<V, VALUE_QUERIES, 1>(q, values),
                    }
                }
                register += if wide { VALUE_REGISTERS } else { 1 };
            }
            q += queries;
        }
    }

    /// Adds `R` registers of the values to the outputs of `Q` queries from `q`.
    ///
    /// # Safety
    ///
    /// As `accumulate`; `values.at + R * V::LANES` must not exceed the head by a register or more.
    #[inline(always)]
    unsafe fn add_values<V: Simd, const Q: usize, const R: usize>(
        &mut self,
        q: usize,
        values: Values,
    ) {
        let stride = self.scratch.head_stride;
        let out = self.scratch.out[q * stride + values.at..].as_mut_ptr();
        let exponentials = &self.scratch.scores[q * BLOCK_TOKENS..][..Q * BLOCK_TOKENS];
        // SAFETY: the scratch has `Q` queries from `q`; the values are the caller's.
        unsafe {
            let mut sums = [[V::splat(0.0); R]; Q];
            for (i, sums) in sums.iter_mut().enumerate() {
                let decay = V::splat(self.scratch.decay[q + i]);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(out.add(i * stride + r * V::LANES)).mul(decay);
                }
            }
            for token in values.reach {
                let value = values.first.add(token * self.head_dim + values.at);
                let mut registers = [V::splat(0.0); R];
                for (r, register) in registers.iter_mut().enumerate() {
                    *register = V::load(value.add(r * V::LANES));
                    V::prefetch_far(
                        value.wrapping_offset(values.to_next).wrapping_add(r * V::LANES).cast(),
                    );
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let e = V::splat(*exponentials.get_unchecked(i * BLOCK_TOKENS + token));
                    for (sum, &value) in sums.iter_mut().zip(&registers) {
                        *sum = e.mul_add(value, *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                for (r, sum) in sums.iter().enumerate() {
                    sum.store(out.add(i * stride + r * V::LANES));
                }
            }
        }
    }
}

/// Some places of the values of a block.
struct Values {
    /// The block's values.
    first: *const f32,
    /// First place in the head.
    at: usize,
    /// Tokens to take.
    reach: Range<usize>,
    /// Floats to the next block.
    to_next: isize,
}
