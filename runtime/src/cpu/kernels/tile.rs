//! The innermost loop of products and of attention's scores: a tile of dot products.

use crate::cpu::simd::{MAX_LANES, Simd};

use super::stored::Stored;

/// Rows of weights in a tile. It has up to [`Simd::TILE_ROWS`] rows of activations.
pub(super) const TILE_COLS: usize = 4;

/// Rows of activations.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// The first row.
    pub(super) first: *const f32,
    /// Floats from one row to the next.
    pub(super) stride: usize,
    /// How many.
    pub(super) len: usize,
}

/// Rows of weights.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// The rows; at a ragged edge the last one is repeated.
    pub(super) rows: [*const u8; TILE_COLS],
    /// What to ask for meanwhile.
    pub(super) ahead: Ahead,
}

/// What a tile asks for while it computes: whichever operand is the one that streams.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// The weights of the tile after this one, so many bytes on: the hardware's prefetchers do not see
    /// beyond a page, and a row is often shorter.
    Weights(isize),
    /// The next tile's rows of activations: the weights are in L1 and stay there, the rows come from L2.
    Rows,
}

/// The dot products of length `k` of all rows of `x` with [`TILE_COLS`] rows of weights: `put(row,
/// sums)`, in tiles of up to `tile_rows` rows (at most `V::TILE_ROWS`).
///
/// # Safety
///
/// Each row of `x` must be readable for `k` floats rounded up to `2 * V::LANES`, and be zero beyond
/// `k`; each row of `weights` for `k` values of `S`. The CPU must have `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn tiles<V: Simd, S: Stored>(
    x: Rows,
    tile_rows: usize,
    weights: Columns,
    k: usize,
    mut put: impl FnMut(usize, [f32; TILE_COLS]),
) {
    /// One size of tile.
    macro_rules! put_tile {
        ($rows:literal, $row:expr) => {{
            let first = x.first.wrapping_add($row * x.stride);
            // SAFETY: the rows are there by the loop below; the rest is the caller's.
            let sums = unsafe { tile::<V, S, $rows>(first, x.stride, weights, k) };
            for (i, sums) in sums.into_iter().enumerate() {
                put($row + i, sums);
            }
        }};
    }
    let mut row = 0;
    while row < x.len {
        let rows = tile_rows.min(x.len - row);
        match rows {
            1 => put_tile!(1, row),
            2 => put_tile!(2, row),
            3 => put_tile!(3, row),
            4 if V::TILE_ROWS >= 4 => put_tile!(4, row),
            5 if V::TILE_ROWS >= 5 => put_tile!(5, row),
            6 if V::TILE_ROWS >= 6 => put_tile!(6, row),
            _ => unreachable!("tiles have up to six rows"),
        }
        row += rows;
    }
}

/// `ROWS` x [`TILE_COLS`] dot products of length `k`.
///
/// # Safety
///
/// As [`tiles`], for `ROWS` rows from `x`.
#[inline(always)]
unsafe fn tile<V: Simd, S: Stored, const ROWS: usize>(
    x: *const f32,
    x_stride: usize,
    weights: Columns,
    k: usize,
) -> [[f32; TILE_COLS]; ROWS] {
    let step = 2 * V::LANES;
    let whole = k - k % step;
    // SAFETY: whole steps lie within the rows; the ragged rest of the weights is copied to a
    // zeroed buffer of a whole step first.
    unsafe {
        let mut sums = [[V::splat(0.0); TILE_COLS]; ROWS];
        for at in (0..whole).step_by(step) {
            let rows = weights.rows.map(|row| row.add(at * S::BYTES));
            match weights.ahead {
                Ahead::Weights(to_next) => {
                    rows.into_iter().for_each(|row| V::prefetch_far(row.wrapping_offset(to_next)));
                }
                Ahead::Rows => (ROWS..2 * ROWS)
                    .for_each(|m| V::prefetch_near(x.wrapping_add(m * x_stride + at).cast())),
            }
            add_step::<V, S, ROWS>(&mut sums, x.add(at), x_stride, rows);
        }
        if whole < k {
            let rest = weights.rows.map(|row| rest_of_row::<S>(row, whole, k));
            let rows = rest.each_ref().map(|rest| rest.as_ptr());
            add_step::<V, S, ROWS>(&mut sums, x.add(whole), x_stride, rows);
        }
        let mut out = [[0.0; TILE_COLS]; ROWS];
        for (out, &sums) in out.iter_mut().zip(&sums) {
            *out = V::sum4(sums);
        }
        out
    }
}

/// Adds `2 * LANES` products to each sum: the step's first register, then its second.
///
/// # Safety
///
/// As [`tile`], for `2 * V::LANES` values of each row.
#[inline(always)]
unsafe fn add_step<V: Simd, S: Stored, const ROWS: usize>(
    sums: &mut [[V; TILE_COLS]; ROWS],
    x: *const f32,
    x_stride: usize,
    weights: [*const u8; TILE_COLS],
) {
    // SAFETY: the caller's.
    unsafe {
        let mut halves = [V::splat(0.0); ROWS];
        for (m, half) in halves.iter_mut().enumerate() {
            *half = V::load(x.add(m * x_stride));
        }
        for (j, &row) in weights.iter().enumerate() {
            let w = S::first::<V>(row);
            for m in 0..ROWS {
                sums[m][j] = halves[m].mul_add(w, sums[m][j]);
            }
        }
        for (m, half) in halves.iter_mut().enumerate() {
            *half = V::load(x.add(m * x_stride + V::LANES));
        }
        for (j, &row) in weights.iter().enumerate() {
            let w = S::second::<V>(row);
            for m in 0..ROWS {
                sums[m][j] = halves[m].mul_add(w, sums[m][j]);
            }
        }
    }
}

/// The values `whole..k` of a row, followed by zeros.
///
/// # Safety
///
/// `row` must be readable for `k` values of `S`, and `k - whole` not exceed `2 * MAX_LANES`.
#[inline(always)]
pub(super) unsafe fn rest_of_row<S: Stored>(
    row: *const u8,
    whole: usize,
    k: usize,
) -> [u8; 8 * MAX_LANES] {
    let mut rest = [0; 8 * MAX_LANES];
    // SAFETY: the caller's.
    unsafe {
        let bytes = (k - whole) * S::BYTES;
        row.add(whole * S::BYTES).copy_to_nonoverlapping(rest.as_mut_ptr(), bytes);
    }
    rest
}
