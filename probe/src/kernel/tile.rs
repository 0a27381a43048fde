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

use trail_base::simd::Simd;

use super::{Product, ROW_LINES};
use crate::line::{LANES, PAIR};

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
    const { assert!(N * V::LANES == LANES && W.is_multiple_of(N)) };
    debug_assert!(rows.len().is_multiple_of(R) && rows.end <= product.rows);
    let wide = product.panels - product.panels % (W / N);
    for panel in (0..wide).step_by(W / N) {
        for row in rows.clone().step_by(R) {
            // SAFETY: rows `row..row + R` and panels `panel..panel + W / N` lie within the checked
            // operands.
            unsafe { tile::<V, R, W>(product, row, panel) };
        }
    }
    for panel in wide..product.panels {
        for row in rows.clone().step_by(R) {
            // SAFETY: rows `row..row + R` and the one panel lie within the checked operands.
            unsafe { tile::<V, R, N>(product, row, panel) };
        }
    }
}

/// One tile: R rows from `row` on, W vectors of columns from `panel` on.
///
/// # Safety
///
/// As [`sweep`], with the tile within the operands.
#[inline(always)]
unsafe fn tile<V: Simd, const R: usize, const W: usize>(
    product: &mut Product<'_>,
    row: usize,
    panel: usize,
) {
    const A_STRIDE: usize = ROW_LINES * LANES;
    let (depth, c_stride) = (product.depth, product.c_stride * LANES);
    let a = product.a.as_ptr().cast::<f32>().wrapping_add(row * A_STRIDE);
    let lines = depth / PAIR;
    let b = product.b.as_ptr().cast::<u32>().wrapping_add(panel * lines * LANES);
    let c = product.c.as_mut_ptr().cast::<f32>().wrapping_add(row * c_stride + panel * LANES);
    // Offset of vector w from the tile's first panel, in a matrix whose panels are `stride` apart.
    let column = |w: usize, stride: usize| {
        let per_panel = LANES / V::LANES;
        w / per_panel * stride + w % per_panel * V::LANES
    };
    // SAFETY: by the caller's contract the CPU has V's feature, C holds R rows of W vectors from
    // `c` on, A holds R rows of `depth` values from `a` on, and B `depth / 2` lines for each panel
    // from `b` on; all offsets below stay within those.
    unsafe {
        let mut sums = [[V::splat(0.0); W]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (w, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(c.add(r * c_stride + column(w, LANES)));
            }
        }
        for line in 0..lines {
            let mut pairs = [[V::splat(0.0); PAIR]; W];
            for (w, pair) in pairs.iter_mut().enumerate() {
                let words = b.add(line * LANES + column(w, lines * LANES)).cast();
                *pair = [V::load_bf16_even(words), V::load_bf16_odd(words)];
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
                sum.store(c.add(r * c_stride + column(w, LANES)));
            }
        }
    }
}
