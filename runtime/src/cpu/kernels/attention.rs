//! Causal attention of some consecutive rows of one request, for the query heads of one KV head.
//!
//! Online softmax, one KV block after the other from the oldest: blocks lie at absolute positions,
//! so a row meets the same blocks, and does the same arithmetic, in a long prefill chunk as in a
//! decode step. The rows of a call only share the loads: a tile of queries meets each key and value
//! while it is in a register. A row takes no part in blocks outside its window.

use std::ops::Range;

use crate::batch::BLOCK_TOKENS;
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{MAX_LANES, Simd};

use super::stored::StoredF32;
use super::swiglu::exp;
use super::tile::{Rows, TILE_COLS, tiles};

/// Queries whose values are accumulated together, and registers of a value they share.
const VALUE_TILE: (usize, usize) = (3, 4);

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

/// One worker's memory for attention, reused by every task.
pub(crate) struct AttentionScratch {
    /// Floats from one query (or output) to the next.
    pub(crate) head_stride: usize,
    /// Rotated, scaled queries `[queries][head_stride]`, zero beyond the head.
    pub(crate) queries: Aligned,
    /// Weighted sums of values `[queries][head_stride]`.
    pub(crate) out: Aligned,
    /// Scores, then their exponentials `[queries][BLOCK_TOKENS]`, of the current block.
    scores: Aligned,
    /// Largest score so far `[queries]`.
    max: Vec<f32>,
    /// Sum of exponentials so far `[queries]`.
    sum: Vec<f32>,
    /// What `out` is multiplied with when the maximum has moved `[queries]`.
    decay: Vec<f32>,
}

impl AttentionScratch {
    /// Memory for `queries` queries of `head_dim`.
    pub(crate) fn new(queries: usize, head_dim: usize) -> Self {
        let head_stride = head_dim.next_multiple_of(2 * MAX_LANES);
        AttentionScratch {
            head_stride,
            queries: Aligned::zeroed(queries * head_stride),
            out: Aligned::zeroed(queries * head_stride),
            scores: Aligned::zeroed(queries * BLOCK_TOKENS),
            max: vec![0.0; queries],
            sum: vec![0.0; queries],
            decay: vec![0.0; queries],
        }
    }
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
        for block in oldest / BLOCK_TOKENS..=last / BLOCK_TOKENS {
            let base = self.blocks[block] as usize * self.block_len;
            let len = BLOCK_TOKENS * self.head_dim;
            let keys = &self.kv[base + self.keys..][..len];
            // Registers of the last value may reach beyond its head; the pool is padded for it.
            let values = &self.kv[base + self.values..][..len + MAX_LANES];
            let active = self.active(block);
            // SAFETY: the slices hold a block; the instructions are the caller's.
            unsafe {
                self.score::<V>(active.clone(), keys.as_ptr());
                self.soften::<V>(active.clone(), block);
                self.accumulate::<V>(active, block, values.as_ptr());
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
    unsafe fn score<V: Simd>(&mut self, active: Range<usize>, keys: *const f32) {
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
                let keys = std::array::from_fn(|j| keys.add((token + j) * self.head_dim).cast());
                tiles::<V, StoredF32>(queries, keys, self.head_dim, put);
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
                let decay = exp(V::splat(scratch.max[q] - max)).max_lane();
                for at in (0..BLOCK_TOKENS).step_by(V::LANES) {
                    let p = scores.as_mut_ptr().add(at);
                    exp(V::load(p).sub(V::splat(max))).store(p);
                }
                scratch.max[q] = max;
                scratch.decay[q] = decay;
            }
            let added = scores[reach].iter().fold(0.0, |sum, &e| sum + e);
            scratch.sum[q] = scratch.sum[q] * scratch.decay[q] + added;
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
    ) {
        let (tile_queries, tile_registers) = VALUE_TILE;
        let registers = self.head_dim.div_ceil(V::LANES);
        let mut q = active.start;
        while q < active.end {
            let reach = self.reach(q, block);
            let full =
                q + tile_queries <= active.end && reach == self.reach(q + tile_queries - 1, block);
            let mut register = 0;
            while register < registers {
                let wide = registers - register >= tile_registers;
                let at = register * V::LANES;
                // SAFETY: the registers begin within the head; reach lies within the block.
                unsafe {
                    match (full, wide) {
                        (true, true) => self.values_tile::<V, 3, 4>(q, at, reach.clone(), values),
                        (true, false) => self.values_tile::<V, 3, 1>(q, at, reach.clone(), values),
                        (false, true) => self.values_tile::<V, 1, 4>(q, at, reach.clone(), values),
                        (false, false) => self.values_tile::<V, 1, 1>(q, at, reach.clone(), values),
                    }
                }
                register += if wide { tile_registers } else { 1 };
            }
            q += if full { tile_queries } else { 1 };
        }
    }

    /// `accumulate` for `Q` queries from `q` with the same reach, and `R` registers from place `at`.
    ///
    /// # Safety
    ///
    /// As `accumulate`; `at + R * V::LANES` must not exceed the head by a register or more.
    #[inline(always)]
    unsafe fn values_tile<V: Simd, const Q: usize, const R: usize>(
        &mut self,
        q: usize,
        at: usize,
        reach: Range<usize>,
        values: *const f32,
    ) {
        let stride = self.scratch.head_stride;
        let out =
            self.scratch.out[q * stride + at..][..(Q - 1) * stride + R * V::LANES].as_mut_ptr();
        let exponentials = &self.scratch.scores[q * BLOCK_TOKENS..][..Q * BLOCK_TOKENS];
        // SAFETY: `out` was sliced for the tile; `values` is the caller's.
        unsafe {
            let mut sums = [[V::splat(0.0); R]; Q];
            for (i, sums) in sums.iter_mut().enumerate() {
                let decay = V::splat(self.scratch.decay[q + i]);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(out.add(i * stride + r * V::LANES)).mul(decay);
                }
            }
            for token in reach {
                let value = values.add(token * self.head_dim + at);
                let mut registers = [V::splat(0.0); R];
                for (r, register) in registers.iter_mut().enumerate() {
                    *register = V::load(value.add(r * V::LANES));
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
