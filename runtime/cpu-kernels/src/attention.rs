//! Causal attention of consecutive rows of one request, for the query heads of one KV head.
//!
//! Online softmax over spans of KV blocks, oldest first, and over the partitions of the context.
//! Both are at absolute positions, so a row reads the same blocks, and does the same arithmetic, in
//! a long prefill chunk as in a decode step. The rows of a call only share loads: a tile of queries
//! uses each key and value while it is in a register. A row skips blocks outside its sliding
//! window.

use std::ops::Range;

use trail_platform::simd::{MAX_LANES, Simd};

use crate::Dtype;

use super::glu::exp;
use super::quantized::StoredQ8_0;
use super::scratch::{AttentionScratch, BLOCK_TOKENS, SPAN_BLOCKS, SPAN_TOKENS};
use super::stored::{Cached, StoredBf16, StoredF16, StoredF32, TILE_COLS};
use super::tile::{Ahead, Columns, Rows, tiles};

/// Types of keys and values.
pub const KV_DTYPES: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8_0];

/// Blocks of a partition, 512 tokens: a context is attended to in partitions from fixed positions,
/// whose sums are added oldest first, so that the threads can share a long one (vLLM's
/// PagedAttention V2; the split KV of FlashDecoding).
const PARTITION_BLOCKS: usize = 32;

/// Partitions that rows at positions `first..=last` with a sliding `window` attend to.
pub fn partitions(first: usize, last: usize, window: usize) -> Range<usize> {
    let tokens = PARTITION_BLOCKS * BLOCK_TOKENS;
    (first + 1).saturating_sub(window) / tokens..last / tokens + 1
}

/// Number of registers of a value vector that the queries of a tile share.
const VALUE_REGISTERS: usize = 4;

/// Operands of one attention task. Query `row * group + head` belongs to row `row` of the task.
pub struct Attention<'a> {
    /// Queries on entry; on return its total is that of `partitions`.
    pub scratch: &'a mut AttentionScratch,
    /// Partitions of the context to attend to, of those in [`partitions`].
    pub partitions: Range<usize>,
    /// Number of rows, at positions `position..`.
    pub rows: usize,
    /// Number of query heads per KV head.
    pub group: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Position of the first row.
    pub position: usize,
    /// A row attends to itself and the `window - 1` positions before it.
    pub window: usize,
    /// The KV pool.
    pub kv: &'a [u8],
    /// Type of its values: f32, f16, bf16 or Q8_0.
    pub kv_dtype: Dtype,
    /// Blocks of the request, by position.
    pub blocks: &'a [u32],
    /// Size of a block, bytes.
    pub block_bytes: usize,
    /// Offset in a block of this layer's and head's keys `[BLOCK_TOKENS][head_dim]`, bytes.
    pub keys: usize,
    /// Offset in a block of this layer's and head's values, bytes.
    pub values: usize,
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
                Dtype::F32 => self.run_on::<V, StoredF32>(),
                Dtype::F16 => self.run_on::<V, StoredF16>(),
                Dtype::Bf16 => self.run_on::<V, StoredBf16>(),
                Dtype::Q8_0 => self.run_on::<V, StoredQ8_0>(),
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
    unsafe fn run_on<V: Simd, T: Cached<V>>(mut self) {
        let queries = self.rows * self.group;
        assert!(self.scratch.decay.len() >= queries && self.scratch.head_stride >= self.head_dim);
        self.scratch.total.clear(queries);
        let (oldest, newest) = self.reached_blocks();
        for partition in self.partitions.clone() {
            let blocks = partition * PARTITION_BLOCKS..(partition + 1) * PARTITION_BLOCKS;
            self.scratch.partition.clear(queries);
            // SAFETY: the caller guarantees the instructions.
            unsafe { self.attend::<V, T>(blocks.start.max(oldest)..blocks.end.min(newest + 1)) };
            let AttentionScratch { total, partition, .. } = &mut *self.scratch;
            total.add(partition, queries);
        }
    }

    /// Oldest and newest block that a row of the task attends to.
    fn reached_blocks(&self) -> (usize, usize) {
        let oldest = (self.position + 1).saturating_sub(self.window);
        (oldest / BLOCK_TOKENS, (self.position + self.rows - 1) / BLOCK_TOKENS)
    }

    /// Adds the tokens of `range`, consecutive blocks of a partition, to the scratch's partition.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn attend<V: Simd, T: Cached<V>>(&mut self, range: Range<usize>) {
        let mut first = range.start;
        while first < range.end {
            // Spans begin at multiples of their length, wherever a window does.
            let end = range.end.min((first / SPAN_BLOCKS + 1) * SPAN_BLOCKS);
            // SAFETY: the caller guarantees `V`'s instructions.
            unsafe {
                // (A closure would not be compiled with these instructions.)
                for block in first..end {
                    self.score::<V, T>(block);
                }
                self.soften::<V>(first..end);
                self.accumulate::<V, T>(first..end);
            }
            first = end;
        }
    }

    /// Offset of `block` in the KV pool, and the distance to the next one of the task, bytes.
    /// Blocks are scattered, so the hardware prefetcher cannot predict the next one.
    fn place(&self, block: usize) -> (usize, isize) {
        let base = |block: usize| self.blocks[block] as usize * self.block_bytes;
        let next = self.reached_blocks().1.min(block + 1);
        (base(block), base(next) as isize - base(block) as isize)
    }

    /// Range of queries that attend to some token of `blocks`.
    fn active(&self, blocks: Range<usize>) -> Range<usize> {
        let first_token = blocks.start * BLOCK_TOKENS;
        let begin = first_token.saturating_sub(self.position);
        let last_row = (blocks.end * BLOCK_TOKENS - 1).saturating_add(self.window - 1);
        let end = (last_row - self.position).min(self.rows - 1) + 1;
        begin * self.group..end * self.group
    }

    /// Range of tokens of the span of `block` that `query` attends to.
    #[inline(always)]
    fn reach(&self, query: usize, block: usize) -> Range<usize> {
        let position = self.position + query / self.group;
        let first_token = block / SPAN_BLOCKS * SPAN_TOKENS;
        let begin = (position + 1).saturating_sub(self.window).saturating_sub(first_token);
        begin..(position + 1 - first_token).min(SPAN_TOKENS)
    }

    /// `scores = queries . keys` of `block`.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn score<V: Simd, T: Cached<V>>(&mut self, block: usize) {
        let (begin, to_next) = self.place(block);
        let active = self.active(block..block + 1);
        let (bytes, stride) = (T::DTYPE.bytes_of(self.head_dim), self.scratch.head_stride);
        let keys = self.kv[begin + self.keys..][..BLOCK_TOKENS * bytes].as_ptr();
        let queries = self.scratch.queries[active.start * stride..active.end * stride].as_ptr();
        let queries = Rows { first: queries, stride, len: active.len() };
        let first_score = block % SPAN_BLOCKS * BLOCK_TOKENS;
        for token in (0..BLOCK_TOKENS).step_by(TILE_COLS) {
            let put = |query: usize, scores: [f32; TILE_COLS]| {
                let at = (active.start + query) * SPAN_TOKENS + first_score + token;
                self.scratch.scores[at..][..TILE_COLS].copy_from_slice(&scores);
            };
            // SAFETY: the tile's keys lie within the block; queries are padded with zeros; the
            // caller guarantees `V`'s instructions.
            unsafe {
                let rows = std::array::from_fn(|j| keys.add((token + j) * bytes));
                let keys = Columns { rows, ahead: Ahead::Weights(to_next) };
                tiles::<V, T>(queries, keys, self.head_dim, put);
            }
        }
    }

    /// Replaces the scores of a span's `blocks` by exponentials relative to the running maximum.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn soften<V: Simd>(&mut self, blocks: Range<usize>) {
        for q in self.active(blocks.clone()) {
            let reach = self.reach(q, blocks.start);
            let scratch = &mut *self.scratch;
            let scores = &mut scratch.scores[q * SPAN_TOKENS..][..SPAN_TOKENS];
            // Only registers within reach: which others were scored depends on the task's rows.
            let registers = reach.start / V::LANES * V::LANES..reach.end.next_multiple_of(V::LANES);
            scores[registers.start..reach.start].fill(f32::NEG_INFINITY);
            scores[reach.end..registers.end].fill(f32::NEG_INFINITY);
            let scores = &mut scores[registers];
            // SAFETY: each chunk is a register; the caller guarantees `V`'s instructions.
            unsafe {
                let mut largest = V::splat(scratch.partition.max[q]);
                for scores in scores.chunks_exact(V::LANES) {
                    largest = largest.max(V::load(scores.as_ptr()));
                }
                let max = largest.max_lane();
                let mut sum = V::splat(0.0);
                for scores in scores.chunks_exact_mut(V::LANES) {
                    // Masked tokens add e^-87, which is lost in the sum, as that is at least 1.
                    let e = exp(V::load(scores.as_ptr()).sub(V::splat(max)));
                    sum = sum.add(e);
                    e.store(scores.as_mut_ptr());
                }
                let [sum, ..] = V::sum4([sum; 4]);
                // The maximum rarely changes, and e^0 is exactly 1.
                let decay = if max == scratch.partition.max[q] {
                    1.0
                } else {
                    exp(V::splat(scratch.partition.max[q] - max)).max_lane()
                };
                scratch.partition.max[q] = max;
                scratch.decay[q] = decay;
                scratch.partition.sum[q] = scratch.partition.sum[q] * decay + sum;
            }
        }
    }

    /// `out = out * decay + exponentials . values`.
    ///
    /// # Safety
    ///
    /// The CPU must have `V`'s instructions.
    #[inline(always)]
    unsafe fn accumulate<V: Simd, T: Cached<V>>(&mut self, blocks: Range<usize>) {
        let registers = self.head_dim.div_ceil(V::LANES);
        let active = self.active(blocks.clone());
        let mut values =
            Values { blocks: [(std::ptr::null(), 0); SPAN_BLOCKS], at: 0, reach: 0..0 };
        for block in blocks.clone() {
            let (begin, to_next) = self.place(block);
            // The last vector load of single values may read beyond the head; the pool is padded
            // for it.
            let padding = if T::DTYPE.is_quantized() { 0 } else { MAX_LANES };
            let len = T::DTYPE.bytes_of(BLOCK_TOKENS * self.head_dim + padding);
            let first = self.kv[begin + self.values..][..len].as_ptr();
            values.blocks[block % SPAN_BLOCKS] = (first, to_next);
        }
        let mut q = active.start;
        while q < active.end {
            values.reach = self.reach(q, blocks.start);
            let mut queries = V::TILE_ROWS.min(active.end - q);
            while values.reach != self.reach(q + queries - 1, blocks.start) {
                queries -= 1;
            }
            for register in (0..registers).step_by(VALUE_REGISTERS) {
                values.at = register * V::LANES;
                // SAFETY: the registers begin within the head; `reach` is within the span.
                unsafe {
                    match registers - register {
                        1 => self.add_tile::<V, T, 1>(q, queries, &values),
                        2 => self.add_tile::<V, T, 2>(q, queries, &values),
                        3 => self.add_tile::<V, T, 3>(q, queries, &values),
                        _ => self.add_tile::<V, T, VALUE_REGISTERS>(q, queries, &values),
                    }
                }
            }
            q += queries;
        }
    }

    /// Adds `R` registers of the values to the outputs of `queries` queries from `q`.
    ///
    /// # Safety
    ///
    /// As `add_values`.
    #[inline(always)]
    unsafe fn add_tile<V: Simd, T: Cached<V>, const R: usize>(
        &mut self,
        q: usize,
        queries: usize,
        values: &Values,
    ) {
        // SAFETY: the caller guarantees the values and the instructions.
        unsafe {
            match queries {
                1 => self.add_values::<V, T, 1, R>(q, values),
                2 => self.add_values::<V, T, 2, R>(q, values),
                3 => self.add_values::<V, T, 3, R>(q, values),
                4 if V::TILE_ROWS >= 4 => self.add_values::<V, T, 4, R>(q, values),
                5 if V::TILE_ROWS >= 5 => self.add_values::<V, T, 5, R>(q, values),
                6 if V::TILE_ROWS >= 6 => self.add_values::<V, T, 6, R>(q, values),
                _ => unreachable!("tiles have up to six rows"),
            }
        }
    }

    /// Adds `R` registers of the values to the outputs of `Q` queries from `q`.
    ///
    /// # Safety
    ///
    /// Values within reach must be readable for a block plus one register, and `values.at + R *
    /// V::LANES` must not exceed the head by a register or more. The CPU must have `V`'s
    /// instructions.
    #[inline(always)]
    unsafe fn add_values<V: Simd, T: Cached<V>, const Q: usize, const R: usize>(
        &mut self,
        q: usize,
        values: &Values,
    ) {
        let (stride, bytes) = (self.scratch.head_stride, T::DTYPE.bytes_of(self.head_dim));
        let out = self.scratch.partition.out[q * stride + values.at..].as_mut_ptr();
        let exponentials = &self.scratch.scores[q * SPAN_TOKENS..][..Q * SPAN_TOKENS];
        // SAFETY: the scratch has `Q` queries from `q`; the caller guarantees the values.
        unsafe {
            let mut sums = [[V::splat(0.0); R]; Q];
            for (i, sums) in sums.iter_mut().enumerate() {
                let decay = V::splat(self.scratch.decay[q + i]);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(out.add(i * stride + r * V::LANES)).mul(decay);
                }
            }
            let mut token = values.reach.start;
            while token < values.reach.end {
                let (first, to_next) = values.blocks[token / BLOCK_TOKENS];
                let end = values.reach.end.min((token / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
                for token in token..end {
                    let vector = first.add(token % BLOCK_TOKENS * bytes);
                    let mut registers = [V::splat(0.0); R];
                    for (r, register) in registers.iter_mut().enumerate() {
                        let at = values.at + r * V::LANES;
                        *register = T::load(vector, at);
                        V::prefetch_far(
                            vector.wrapping_offset(to_next).wrapping_add(T::offset(at)),
                        );
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let e = V::splat(*exponentials.get_unchecked(i * SPAN_TOKENS + token));
                        for (sum, &value) in sums.iter_mut().zip(&registers) {
                            *sum = e.mul_add(value, *sum);
                        }
                    }
                }
                token = end;
            }
            for (i, sums) in sums.iter().enumerate() {
                for (r, sum) in sums.iter().enumerate() {
                    sum.store(out.add(i * stride + r * V::LANES));
                }
            }
        }
    }
}

/// A range of dimensions of the values of a span.
struct Values {
    /// Values of each block within reach, and the distance to the next block, bytes.
    blocks: [(*const u8, isize); SPAN_BLOCKS],
    /// First dimension of the head.
    at: usize,
    /// Range of the span's tokens that are accumulated.
    reach: Range<usize>,
}
