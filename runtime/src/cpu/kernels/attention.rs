//! Causal attention of consecutive rows of one request, for the query heads of one KV head.
//!
//! Online softmax over KV blocks, oldest first. Blocks are at absolute positions, so a row reads
//! the same blocks, and does the same arithmetic, in a long prefill chunk as in a decode step. The
//! rows of a call only share loads: a tile of queries uses each key and value while it is in a
//! register. A row skips blocks outside its sliding window.

use std::ops::Range;

use crate::backend::BLOCK_TOKENS;
use crate::cpu::simd::{MAX_LANES, Simd};
use crate::model::Dtype;

use super::glu::exp;
use super::scratch::AttentionScratch;
use super::stored::{Bf16, F16, F32, Float, Floats, TILE_COLS};
use super::tile::{Ahead, Columns, Rows, tiles};

/// Number of queries whose outputs are accumulated together.
const VALUE_QUERIES: usize = 3;
/// Number of registers of a value vector that these queries share.
const VALUE_REGISTERS: usize = 4;

/// Operands of one attention task. Query `row * group + head` belongs to row `row` of the task.
pub(crate) struct Attention<'a> {
    /// Queries on entry, outputs on return.
    pub(crate) scratch: &'a mut AttentionScratch,
    /// Number of rows, at positions `position..`.
    pub(crate) rows: usize,
    /// Number of query heads per KV head.
    pub(crate) group: usize,
    /// Head dimension.
    pub(crate) head_dim: usize,
    /// Position of the first row.
    pub(crate) position: usize,
    /// A row attends to itself and the `window - 1` positions before it.
    pub(crate) window: usize,
    /// The KV pool.
    pub(crate) kv: &'a [u8],
    /// Type of its values: f32, f16 or bf16.
    pub(crate) kv_dtype: Dtype,
    /// Blocks of the request, by position.
    pub(crate) blocks: &'a [u32],
    /// Size of a block, bytes.
    pub(crate) block_bytes: usize,
    /// Offset in a block of this layer's and head's keys `[BLOCK_TOKENS][head_dim]`, bytes.
    pub(crate) keys: usize,
    /// Offset in a block of this layer's and head's values, bytes.
    pub(crate) values: usize,
}

impl Attention<'_> {
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    pub(super) unsafe fn run<V: Simd>(self) {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            match self.kv_dtype {
                Dtype::F32 => self.run_on::<V, F32>(),
                Dtype::F16 => self.run_on::<V, F16>(),
                Dtype::Bf16 => self.run_on::<V, Bf16>(),
                other => unreachable!("keys and values in {other}"),
            }
        }
    }

    /// Attention over keys and values of `T`.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn run_on<V: Simd, T: Float>(mut self) {
        let size = T::DTYPE.block_bytes();
        let queries = self.rows * self.group;
        let last = self.position + self.rows - 1;
        assert!(self.scratch.max.len() >= queries && self.scratch.head_stride >= self.head_dim);
        self.scratch.max[..queries].fill(f32::NEG_INFINITY);
        self.scratch.sum[..queries].fill(0.0);
        self.scratch.out[..queries * self.scratch.head_stride].fill(0.0);
        let oldest = (self.position + 1).saturating_sub(self.window);
        let (blocks, block_bytes) = (self.blocks, self.block_bytes);
        let base = |block: usize| blocks[block] as usize * block_bytes;
        let newest = last / BLOCK_TOKENS;
        for block in oldest / BLOCK_TOKENS..=newest {
            let begin = base(block);
            let len = BLOCK_TOKENS * self.head_dim * size;
            let keys = &self.kv[begin + self.keys..][..len];
            // The last vector load may read beyond the head; the pool is padded for it.
            let values = &self.kv[begin + self.values..][..len + MAX_LANES * size];
            // Blocks are scattered, so the hardware prefetcher cannot predict the next one.
            let to_next = base(newest.min(block + 1)) as isize - begin as isize;
            let active = self.active(block);
            // SAFETY: the slices hold a block; the caller guarantees `V`'s instructions.
            unsafe {
                self.score::<V, T>(active.clone(), keys.as_ptr(), to_next);
                self.soften::<V>(active.clone(), block);
                self.accumulate::<V, T>(active, block, values.as_ptr(), to_next);
            }
        }
        for q in 0..queries {
            let out = &mut self.scratch.out[q * self.scratch.head_stride..][..self.head_dim];
            let scale = 1.0 / self.scratch.sum[q];
            out.iter_mut().for_each(|o| *o *= scale);
        }
    }

    /// Range of queries that attend to some token of `block`.
    fn active(&self, block: usize) -> Range<usize> {
        let first_token = block * BLOCK_TOKENS;
        let begin = first_token.saturating_sub(self.position);
        let last_row = (first_token + BLOCK_TOKENS - 1).saturating_add(self.window - 1);
        let end = (last_row - self.position).min(self.rows - 1) + 1;
        begin * self.group..end * self.group
    }

    /// Range of tokens of `block` that `query` attends to.
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
    unsafe fn score<V: Simd, T: Float>(
        &mut self,
        active: Range<usize>,
        keys: *const u8,
        to_next: isize,
    ) {
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
                let size = T::DTYPE.block_bytes();
                let rows = std::array::from_fn(|j| keys.add((token + j) * self.head_dim * size));
                let keys = Columns { rows, ahead: Ahead::Weights(to_next) };
                tiles::<V, Floats<T>>(queries, keys, self.head_dim, put);
            }
        }
    }

    /// Replaces scores by exponentials relative to the running maximum.
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
            // SAFETY: `scores` has BLOCK_TOKENS floats, a multiple of LANES; the caller guarantees
            // `V`'s instructions.
            unsafe {
                let mut largest = V::splat(scratch.max[q]);
                for at in (0..BLOCK_TOKENS).step_by(V::LANES) {
                    largest = largest.max(V::load(scores.as_ptr().add(at)));
                }
                let max = largest.max_lane();
                let mut sum = V::splat(0.0);
                for at in (0..BLOCK_TOKENS).step_by(V::LANES) {
                    let p = scores.as_mut_ptr().add(at);
                    // Masked tokens add e^-87, which is lost in the sum, as that is at least 1.
                    let e = exp(V::load(p).sub(V::splat(max)));
                    sum = sum.add(e);
                    e.store(p);
                }
                let [sum, ..] = V::sum4([sum; 4]);
                // The maximum rarely changes, and e^0 is exactly 1.
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
    /// `values` must be readable for a block plus one register; the CPU must have `V`'s
    /// instructions.
    #[inline(always)]
    unsafe fn accumulate<V: Simd, T: Float>(
        &mut self,
        active: Range<usize>,
        block: usize,
        values: *const u8,
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
                // SAFETY: the registers begin within the head; `reach` is within the block.
                unsafe {
                    match (queries, wide) {
                        (1, true) => self.add_values::<V, T, 1, VALUE_REGISTERS>(q, values),
                        (1, false) => self.add_values::<V, T, 1, 1>(q, values),
                        (2, true) => self.add_values::<V, T, 2, VALUE_REGISTERS>(q, values),
                        (2, false) => self.add_values::<V, T, 2, 1>(q, values),
                        (_, true) => {
                            self.add_values::<V, T, VALUE_QUERIES, VALUE_REGISTERS>(q, values)
                        }
                        (_, false) => self.add_values::<V, T, VALUE_QUERIES, 1>(q, values),
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
    unsafe fn add_values<V: Simd, T: Float, const Q: usize, const R: usize>(
        &mut self,
        q: usize,
        values: Values,
    ) {
        let (stride, size) = (self.scratch.head_stride, T::DTYPE.block_bytes());
        let out = self.scratch.out[q * stride + values.at..].as_mut_ptr();
        let exponentials = &self.scratch.scores[q * BLOCK_TOKENS..][..Q * BLOCK_TOKENS];
        // SAFETY: the scratch has `Q` queries from `q`; the caller guarantees the values.
        unsafe {
            let mut sums = [[V::splat(0.0); R]; Q];
            for (i, sums) in sums.iter_mut().enumerate() {
                let decay = V::splat(self.scratch.decay[q + i]);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(out.add(i * stride + r * V::LANES)).mul(decay);
                }
            }
            for token in values.reach {
                let value = values.first.add((token * self.head_dim + values.at) * size);
                let mut registers = [V::splat(0.0); R];
                for (r, register) in registers.iter_mut().enumerate() {
                    let at = r * V::LANES * size;
                    *register = T::first::<V>(value.add(at));
                    V::prefetch_far(value.wrapping_offset(values.to_next).wrapping_add(at));
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

/// A range of dimensions of the values of a block.
struct Values {
    /// The block's values.
    first: *const u8,
    /// First dimension of the head.
    at: usize,
    /// Range of tokens that are accumulated.
    reach: Range<usize>,
    /// Distance to the next block, bytes.
    to_next: isize,
}
