//! Innermost loop of products and of attention's scores: a register tile of dot products.

use std::mem::MaybeUninit;

use crate::Dtype;
use trail_platform::simd::{MAX_LANES, Simd};

use super::stored::{Stored, TILE_COLS};

/// Rows of activations.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Pointer to the first row.
    pub(super) first: *const f32,
    /// Distance between rows, floats.
    pub(super) stride: usize,
    /// Number of rows.
    pub(super) len: usize,
}

/// Rows of weights.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Pointers to the rows; at a ragged edge the last one is repeated.
    pub(super) rows: [*const u8; TILE_COLS],
    /// Prefetch that runs during the computation.
    pub(super) ahead: Ahead,
}

/// Prefetch of a tile: the operand that is streamed.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// Weights of the next tile, at this distance in bytes: hardware prefetchers stop at a page,
    /// and a row is often shorter.
    Weights(isize),
    /// Activations of the next tile, from L2; the weights stay in L1.
    Rows,
}

/// Computes the dot products of length `k` of all rows of `x` with [`TILE_COLS`] rows of weights,
/// in tiles of as many rows as the registers hold, and passes them to `put(row, sums)`.
///
/// # Safety
///
/// Each row of `x` must be readable for `k` floats rounded up to `2 * V::LANES`, and be zero beyond
/// `k`; each row of `weights` for `k` values of `S`. The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn tiles<V: Simd, S: Stored<V>>(
    x: Rows,
    weights: Columns,
    k: usize,
    mut put: impl FnMut(usize, [f32; TILE_COLS]),
) {
    /// Instantiates one tile size.
    macro_rules! put_tile {
        ($rows:literal, $row:expr) => {{
            let first = x.first.wrapping_add($row * x.stride);
            // SAFETY: the loop below stays within the rows; the caller guarantees the rest.
            let sums = unsafe { tile::<V, S, $rows>(first, x.stride, weights, k) };
            for (i, sums) in sums.into_iter().enumerate() {
                put($row + i, sums);
            }
        }};
    }
    let tile_rows = if matches!(S::DTYPE, Dtype::F32) { V::TILE_ROWS } else { V::NARROW_TILE_ROWS };
    let mut row = 0;
    while row < x.len {
        let rows = tile_rows.min(x.len - row);
        match rows {
            1 => put_tile!(1, row),
            2 => put_tile!(2, row),
            3 => put_tile!(3, row),
            4 if tile_rows >= 4 => put_tile!(4, row),
            5 if tile_rows >= 5 => put_tile!(5, row),
            6 if tile_rows >= 6 => put_tile!(6, row),
            _ => unreachable!("tiles have up to six rows"),
        }
        row += rows;
    }
}

/// Computes `ROWS` x [`TILE_COLS`] dot products of length `k`.
///
/// # Safety
///
/// As [`tiles`], for `ROWS` rows from `x`.
#[inline(always)]
unsafe fn tile<V: Simd, S: Stored<V>, const ROWS: usize>(
    x: *const f32,
    x_stride: usize,
    weights: Columns,
    k: usize,
) -> [[f32; TILE_COLS]; ROWS] {
    let step = S::step();
    let whole = k - k % step;
    let mut rest = [MaybeUninit::uninit(); TILE_COLS];
    // SAFETY: whole steps are within the rows; the tail of the weights is copied to a zeroed buffer
    // of a whole step first.
    unsafe {
        if whole < k {
            debug_assert!(!S::DTYPE.is_quantized(), "rows are whole blocks");
            for (rest, row) in rest.iter_mut().zip(weights.rows) {
                rest.write(rest_of_row::<V, S>(row, whole, k));
            }
        }
        let mut sums = [[V::splat(0.0); TILE_COLS]; ROWS];
        // The tail is a step of the loop: after it, the sums would be spilled for a branch.
        for at in (0..k).step_by(step) {
            let mut rows = weights.rows.map(|row| row.wrapping_add(S::DTYPE.bytes_of(at)));
            match weights.ahead {
                Ahead::Weights(to_next) => {
                    rows.into_iter().for_each(|row| prefetch_step::<V, S>(row, to_next));
                }
                Ahead::Rows => (ROWS..2 * ROWS)
                    .for_each(|m| V::prefetch_near(x.wrapping_add(m * x_stride + at).cast())),
            }
            if at == whole {
                rows = rest.each_ref().map(|rest| rest.as_ptr().cast());
            }
            S::add_step::<ROWS>(&mut sums, x.add(at), x_stride, rows);
        }
        let mut out = [[0.0; TILE_COLS]; ROWS];
        for (out, &sums) in out.iter_mut().zip(&sums) {
            *out = V::sum4(sums);
        }
        out
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the cache lines `to_next` bytes after a step that begins at `row`.
#[inline(always)]
pub(super) fn prefetch_step<V: Simd, S: Stored<V>>(row: *const u8, to_next: isize) {
    for line in (0..S::DTYPE.bytes_of(S::step())).step_by(LINE) {
        V::prefetch_far(row.wrapping_offset(to_next).wrapping_add(line));
    }
}

/// Returns values `whole..k` of a row, zero-padded to a whole step.
///
/// # Safety
///
/// `row` must be readable for `k` values of `S`, a float type, and `k - whole` not exceed
/// `2 * MAX_LANES`.
#[inline(always)]
pub(super) unsafe fn rest_of_row<V: Simd, S: Stored<V>>(
    row: *const u8,
    whole: usize,
    k: usize,
) -> [u8; 8 * MAX_LANES] {
    let mut rest = [0; 8 * MAX_LANES];
    // SAFETY: the caller guarantees readable rows and `V`'s instructions.
    unsafe {
        let bytes = S::DTYPE.bytes_of(k - whole);
        row.add(S::DTYPE.bytes_of(whole)).copy_to_nonoverlapping(rest.as_mut_ptr(), bytes);
    }
    rest
}
