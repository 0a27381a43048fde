//! Interleaving of quantized weights: [`INTERLEAVED_ROWS`] rows side by side.
//!
//! A block of each row, field by field, the field of every row after that of the one before. A
//! field is a word of 4 bytes, or the 2 bytes or the byte of a scale that are left over. So byte
//! `at` of a row's fields becomes byte `INTERLEAVED_ROWS * at` of the group's, and the lanes of a
//! register are read by one load instead of a transposition. (llama.cpp repacks 4-bit weights to
//! the like, `block_q4_0x8`.)

use std::ops::Range;

use crate::Dtype;
use trail_platform::simd::MAX_LANES;

/// Rows of an interleaved group: as many as the widest register has lanes.
pub const INTERLEAVED_ROWS: usize = MAX_LANES;

/// Bytes of a word: the field of all types, but for one scale.
pub(super) const WORD: usize = 4;
/// Bytes of a scale that is no part of a word.
pub(super) const HALF: usize = 2;

/// Interleaves the rows of a group, of `dtype`, a quantized type.
pub fn interleave(dtype: Dtype, rows: &[u8], out: &mut [u8]) {
    assert!(rows.len() == out.len() && rows.len().is_multiple_of(INTERLEAVED_ROWS));
    let (row_bytes, block_bytes) = (rows.len() / INTERLEAVED_ROWS, dtype.block_bytes());
    // A scale that is left over is the first field of a block, but the last of Q6_K's.
    let words = match (block_bytes % WORD, dtype) {
        (0, _) => 0..block_bytes,
        (_, Dtype::Q6K) => 0..block_bytes - HALF,
        (1, _) => 1..block_bytes,
        _ => HALF..block_bytes,
    };
    let out = out.chunks_exact_mut(INTERLEAVED_ROWS * block_bytes);
    for (block, out) in (0..row_bytes).step_by(block_bytes).zip(out) {
        let rows = rows.chunks_exact(row_bytes).map(|row| &row[block..block + block_bytes]);
        for (row, bytes) in rows.enumerate() {
            match words.start {
                1 => put_fields::<1>(bytes, 0..1, row, out),
                start => put_fields::<HALF>(bytes, 0..start, row, out),
            }
            put_fields::<WORD>(bytes, words.clone(), row, out);
            put_fields::<HALF>(bytes, words.end..block_bytes, row, out);
        }
    }
}

/// Copies the fields at bytes `range` of a block of row `row`, each of `WIDTH` bytes.
fn put_fields<const WIDTH: usize>(block: &[u8], range: Range<usize>, row: usize, out: &mut [u8]) {
    let out = &mut out[INTERLEAVED_ROWS * range.start..INTERLEAVED_ROWS * range.end];
    let fields = block[range].as_chunks::<WIDTH>().0;
    for (field, out) in fields.iter().zip(out.chunks_exact_mut(INTERLEAVED_ROWS * WIDTH)) {
        out[row * WIDTH..][..WIDTH].copy_from_slice(field);
    }
}
