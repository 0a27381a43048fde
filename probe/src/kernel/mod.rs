//! The one inner loop of the probe, `C += A B`, for each instruction set.
//!
//! `tile.rs` has the algorithm once, generic over a vector type; `portable.rs`, `avx2.rs` and
//! `avx512.rs` choose the vector and the tile shapes. Both layers of the MLP are calls of
//! [`multiply_add`].
//!
//! Order of summation: every element of C is one chain of multiply-adds over k, ascending. Neither
//! the tile it falls in nor where the K blocks end changes the chain, so a row's bits do not depend
//! on the batch, and the two FMA paths agree with each other to the bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod tile;

use crate::isa::{Isa, Kind};
use crate::line::{LANES, Line, PAIR, PairLine};

/// Most columns of A in one product: a panel of B (8 KiB) stays in L1.
pub(crate) const DEPTH_MAX: usize = 256;

const _: () = assert!(DEPTH_MAX.is_multiple_of(PAIR));

/// Lines from one row of A to the next. A constant, so that the broadcasts of a tile need no
/// address arithmetic, whose instructions would take issue slots of the multiply-adds; and one more
/// than the data, so that the rows of a tile do not all fall into the same cache sets.
pub(crate) const ROW_LINES: usize = DEPTH_MAX / LANES + 1;

/// The operands of `C[rows, 16 panels] += A[rows, depth] B[depth, 16 panels]`.
pub(crate) struct Product<'a> {
    /// Rows of A and C.
    pub(crate) rows: usize,
    /// Columns of A and rows of B; even.
    pub(crate) depth: usize,
    /// Panels of 16 columns in B and C.
    pub(crate) panels: usize,
    /// Row-major A: row r begins at line `r * ROW_LINES`.
    pub(crate) a: &'a [Line],
    /// Packed B in bf16: `[panels][depth / 2]` lines, each the 16 columns of one panel at two k.
    pub(crate) b: &'a [PairLine],
    /// Row-major C: row r begins at line `r * c_stride`.
    pub(crate) c: &'a mut [Line],
    /// Lines from one row of C to the next.
    pub(crate) c_stride: usize,
}

impl Product<'_> {
    /// Panics unless the slices hold what the sizes promise: the kernels go by raw pointers after
    /// this.
    fn check(&self) {
        let last_row = self.rows.saturating_sub(1);
        assert!(self.depth <= DEPTH_MAX && self.depth.is_multiple_of(PAIR));
        assert!(self.a.len() >= last_row * ROW_LINES + self.depth.div_ceil(LANES));
        assert!(self.b.len() >= self.panels * self.depth / PAIR);
        assert!(self.c.len() >= last_row * self.c_stride + self.panels);
        assert!(self.panels <= self.c_stride, "rows of C would overlap");
    }
}

/// Adds A B to C with the kernels of `isa`.
pub(crate) fn multiply_add(isa: Isa, product: Product<'_>) {
    product.check();
    match isa.0 {
        // SAFETY: the operands are checked; the portable vector needs no CPU feature.
        Kind::Portable => unsafe { portable::multiply_add(product) },
        // SAFETY: the operands are checked; an `Isa` of this kind exists only on a CPU with AVX2
        // and FMA.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { avx2::multiply_add(product) },
        // SAFETY: the operands are checked; an `Isa` of this kind exists only on a CPU with
        // AVX-512F.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::multiply_add(product) },
    }
}
