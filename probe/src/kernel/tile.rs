//! The register-tiled product, written once over a register type.
//!
//! ```text
//! for each group of panels          B: depth x 16 columns, 8 KiB at depth 256, stays in L1
//!     for each tile of R rows       A: streams from L2
//!         load the R x W accumulators from C
//!         for k in 0..depth         W/2 loads of B, R broadcasts of A, R*W multiply-adds
//!         store them
//! ```
//!
//! Full tiles are as tall as the registers allow. The rows left over (for a small batch: all
//! rows) get tiles that are lower and wider where registers allow, so that there are still enough
//! independent chains to cover the latency of a multiply-add while B streams.

use std::ops::Range;

use trail_platform::simd::Simd;

use super::format::{Bf16, F32, Format, Int8};
use super::{Product, ROW_LINES};
use crate::line::LANES;
use crate::packed::{HeadDtype, PAIR};

/// Multiplies `rows` (a multiple of R) of the product by all its panels, in tiles of R rows by W
/// vectors; the panels left over in tiles of N vectors, which are one panel.
///
/// # Safety
///
/// The operands hold what the sizes promise (`Product::check`), `rows` lies within `product.rows`,
/// and the CPU has the feature of V.
#[inline(always)]
pub(super) unsafe fn sweep<V: Simd, const R: usize, const W: usize, const N: usize>(
    product: &mut Product<'_>,
    rows: Range<usize>,
) {
    // SAFETY: this function's contract; each format is that of the product's type.
    unsafe {
        match product.dtype {
            HeadDtype::F32 => sweep_of::<V, F32, R, W, N>(product, rows),
            HeadDtype::Bf16 => sweep_of::<V, Bf16, R, W, N>(product, rows),
            HeadDtype::Int8 => sweep_of::<V, Int8, R, W, N>(product, rows),
        }
    }
}

/// [`sweep`] of weights in format F.
///
/// # Safety
///
/// As [`sweep`]; the product's weights are of format F.
#[inline(always)]
unsafe fn sweep_of<V: Simd, F: Format, const R: usize, const W: usize, const N: usize>(
    product: &mut Product<'_>,
    rows: Range<usize>,
) {
    const { assert!(N * V::LANES == LANES && W.is_multiple_of(N)) };
    debug_assert!(rows.len().is_multiple_of(R) && rows.end <= product.rows);
    let wide = product.panels - product.panels % (W / N);
    // Each tile fetches its share of the next group's weights, if there are enough tiles.
    let group = W / N * (product.depth / PAIR) * F::PAIR_BYTES;
    let tiles = rows.len() / R;
    let step = if tiles >= FETCHING_TILES { 64 } else { 0 };
    for panel in (0..wide).step_by(W / N) {
        for (at, row) in rows.clone().step_by(R).enumerate() {
            let next = (panel + W / N) * (product.depth / PAIR) * F::PAIR_BYTES;
            let ahead = Ahead { start: next + at * group / tiles, step };
            // SAFETY: rows `row..row + R` and panels `panel..panel + W / N` lie within the checked
            // operands.
            unsafe { tile::<V, F, R, W>(product, row, panel, ahead) };
        }
    }
    for panel in wide..product.panels {
        for row in rows.clone().step_by(R) {
            let ahead = Ahead { start: 0, step: 0 };
            // SAFETY: rows `row..row + R` and the one panel lie within the checked operands.
            unsafe { tile::<V, F, R, N>(product, row, panel, ahead) };
        }
    }
}

/// Tiles of one group of panels from which on they fetch the next group: each fetches at most one
/// line for two inputs.
const FETCHING_TILES: usize = 4;

/// Weights that a tile fetches into the cache: offset of the first, and bytes from one to the next.
#[derive(Clone, Copy)]
struct Ahead {
    start: usize,
    step: usize,
}

/// One tile: R rows from `row` on, W vectors of columns from `panel` on.
///
/// # Safety
///
/// As [`sweep_of`], with the tile within the operands.
#[inline(always)]
unsafe fn tile<V: Simd, F: Format, const R: usize, const W: usize>(
    product: &mut Product<'_>,
    row: usize,
    panel: usize,
    ahead: Ahead,
) {
    const A_STRIDE: usize = ROW_LINES * LANES;
    let (depth, c_stride) = (product.depth, product.c_stride * LANES);
    let a = product.a.as_ptr().cast::<f32>().wrapping_add(row * A_STRIDE);
    let lines = depth / PAIR;
    let mut fetched = product.b.as_ptr().wrapping_add(ahead.start);
    let b = product.b.as_ptr().wrapping_add(panel * lines * F::PAIR_BYTES);
    let c = product.c.as_mut_ptr().cast::<f32>().wrapping_add(row * c_stride + panel * LANES);
    // Panel of vector w of the tile, and the vector's first column in it.
    let place = |w: usize| (w * V::LANES / LANES, w * V::LANES % LANES);
    // SAFETY: by the caller's contract the CPU has V's feature, C holds R rows of W vectors from
    // `c` on, A holds R rows of `depth` values from `a` on, and B `depth / 2` pairs for each panel
    // from `b` on; all offsets below stay within those.
    unsafe {
        let mut sums = [[V::splat(0.0); W]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (w, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(c.add(r * c_stride + w * V::LANES));
            }
        }
        for line in 0..lines {
            V::prefetch_near(fetched);
            fetched = fetched.wrapping_add(ahead.step);
            let mut pairs = [[V::splat(0.0); PAIR]; W];
            for (w, pair) in pairs.iter_mut().enumerate() {
                let (panel, column) = place(w);
                *pair = F::load(b.add((panel * lines + line) * F::PAIR_BYTES), column);
            }
            for half in 0..PAIR {
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = V::splat(*a.add(r * A_STRIDE + line * PAIR + half));
                    for (sum, pair) in sums.iter_mut().zip(pairs) {
                        *sum = x.mul_add(pair[half], *sum);
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (w, sum) in sums.iter().enumerate() {
                sum.store(c.add(r * c_stride + w * V::LANES));
            }
        }
    }
}
