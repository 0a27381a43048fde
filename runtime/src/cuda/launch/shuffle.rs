//! Launch of the weight shuffle.

use super::Launch;
use crate::cuda::plan;
use crate::model::Dtype;
use std::ffi::c_void;
use trail_ptx::DevicePtr;
use trail_ptx::params::{ShuffleParams, bf16};

/// Order of a product's output features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the sources have them, one after the other.
    Plain,
    /// The two places that RoPE turns together lie 8 rows apart in a tile of 16.
    RotationPairs {
        /// Width of a head; divides the rows of every source.
        head_dim: usize,
    },
    /// Eight rows of the first source, eight of the second, and so on.
    Alternating,
}

/// Row-major sources, stacked in this order: (device pointer, rows). Unused ones have no rows.
pub type Sources = [(DevicePtr<c_void>, usize); 3];

/// Brings weights `width` wide from `sources` into fragment order at `w`, bf16
/// `[rows padded to 128, width padded to 256]`.
pub fn shuffle(
    dtype: Dtype,
    sources: Sources,
    width: usize,
    order: RowOrder,
    w: DevicePtr<bf16>,
) -> Launch<ShuffleParams> {
    let rows = sources.iter().map(|(_, rows)| rows).sum();
    let plan = plan::shuffle::shuffle(dtype, rows, width);
    let (order, head_dim) = match order {
        RowOrder::Plain => (0, 0),
        RowOrder::RotationPairs { head_dim } => (1, head_dim),
        RowOrder::Alternating => (2, 0),
    };
    let [(a, rows_a), (b, rows_b), (c, rows_c)] = sources;
    let params = ShuffleParams {
        a,
        b,
        c,
        w,
        rows_a: rows_a as i32,
        rows_b: rows_b as i32,
        rows_c: rows_c as i32,
        n: rows.next_multiple_of(plan::shuffle::FEATURES) as i32,
        k: width as i32,
        k_padded: width.next_multiple_of(plan::shuffle::WIDTH) as i32,
        order,
        head_dim: head_dim as i32,
    };
    Launch { plan, params }
}
