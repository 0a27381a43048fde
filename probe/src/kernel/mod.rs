//! The inner loops of the probe for each instruction set: `C += A B`, and in [`masses`] the token
//! filter's step.
//!
//! `tile.rs` has the algorithm once, generic over `trail_platform::simd::Simd`; `portable.rs`,
//! `eight_lanes.rs` and `avx512.rs` choose the register and the tile shapes. Both layers of the MLP
//! are calls of [`Kernel::multiply_add`].
//!
//! Order of summation: every element of C is one chain of multiply-adds over k, ascending. Neither
//! the tile it falls in nor where the K blocks end changes the chain, so a row's bits do not depend
//! on the batch, and the paths with FMA agree with each other to the bit.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod eight_lanes;
mod format;
pub(crate) mod masses;
mod portable;
mod tile;

use trail_platform::Isa;

use crate::line::{LANES, Line};
use crate::packed::{HeadDtype, PAIR};

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
    /// Packed B of type `dtype`: `[panels][depth / 2]` pairs of a panel's 16 columns at two k.
    pub(crate) b: &'a [u8],
    pub(crate) dtype: HeadDtype,
    /// Row-major C: row r begins at line `r * c_stride`.
    pub(crate) c: &'a mut [Line],
    /// Lines from one row of C to the next.
    pub(crate) c_stride: usize,
}

impl Product<'_> {
    /// Panics unless the slices are as long as the sizes require: the kernels use raw pointers.
    fn check(&self) {
        let last_row = self.rows.saturating_sub(1);
        assert!(self.depth <= DEPTH_MAX && self.depth.is_multiple_of(PAIR));
        assert!(self.a.len() >= last_row * ROW_LINES + self.depth.div_ceil(LANES));
        assert!(self.b.len() >= self.panels * self.depth * LANES * self.dtype.bytes());
        assert!(self.c.len() >= last_row * self.c_stride + self.panels);
        assert!(self.panels <= self.c_stride, "rows of C would overlap");
    }
}

/// `C += A B` compiled for one instruction set. Holding one proves that the CPU has it.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// Never [`Isa::Auto`].
    isa: Isa,
    /// Requires the CPU features of `isa`, and operands that passed [`Product::check`].
    multiply_add: unsafe fn(Product<'_>),
}

impl Kernel {
    /// The kernel of `isa`; an error if this CPU cannot run it.
    pub(crate) fn select(isa: Isa) -> Result<Kernel, String> {
        let isa = isa.resolve()?;
        let multiply_add: unsafe fn(Product<'_>) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => eight_lanes::multiply_add_avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::multiply_add,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => eight_lanes::multiply_add_neon,
            _ => portable::multiply_add,
        };
        Ok(Kernel { isa, multiply_add })
    }

    /// The instruction set; never [`Isa::Auto`].
    pub(crate) fn isa(self) -> Isa {
        self.isa
    }

    /// Adds A B to C.
    pub(crate) fn multiply_add(self, product: Product<'_>) {
        product.check();
        // SAFETY: the operands were checked just now, the CPU features by `select`, the only place
        // that constructs a `Kernel`.
        unsafe { (self.multiply_add)(product) }
    }
}
