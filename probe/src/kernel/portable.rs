//! Plain arithmetic on four values at a time, which the compiler maps to the registers of the
//! baseline CPU (SSE2, NEON): tiles of 3 rows x 16 columns, 12 accumulators.

use super::Product;
use super::tile::{UPPER_HALF, Vector, sweep};
use crate::line::PAIR;

/// Rows of a full tile.
const ROWS: usize = 3;

/// Four `f32`.
#[derive(Clone, Copy)]
struct Quad([f32; 4]);

impl Vector for Quad {
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Quad([x; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four readable values; `[f32; 4]` is aligned as `f32` is.
        Quad(unsafe { from.cast::<[f32; 4]>().read() })
    }

    #[inline(always)]
    unsafe fn load_pairs(from: *const u32) -> [Self; PAIR] {
        // SAFETY: the caller vouches for four readable words; `[u32; 4]` is aligned as `u32` is.
        let pairs = unsafe { from.cast::<[u32; 4]>().read() };
        [pairs.map(|pair| pair << 16), pairs.map(|pair| pair & UPPER_HALF as u32)]
            .map(|bits| Quad(bits.map(f32::from_bits)))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for four writable values; `[f32; 4]` is aligned as `f32` is.
        unsafe { to.cast::<[f32; 4]>().write(self.0) }
    }

    // Two roundings, not one: a fused multiply-add is a library call where the baseline CPU lacks
    // it.
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Quad(std::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
    }
}

/// Adds A B to C.
///
/// # Safety
///
/// The operands passed `Product::check`.
pub(super) unsafe fn multiply_add(mut product: Product<'_>) {
    let rows = product.rows;
    let full = rows - rows % ROWS;
    // SAFETY: the caller vouches for the operands; the two ranges are 0..rows.
    unsafe {
        sweep::<Quad, ROWS, 4, 4>(&mut product, 0..full);
        match rows - full {
            1 => sweep::<Quad, 1, 8, 4>(&mut product, full..rows),
            2 => sweep::<Quad, 2, 4, 4>(&mut product, full..rows),
            _ => {}
        }
    }
}
