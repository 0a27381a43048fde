//! The heads of attention.

use crate::cuda::plan::Shape;

/// Heads of the model as attention sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Query heads of each.
    pub group: usize,
    /// Width of a head: 64 or 128.
    pub head_dim: usize,
}

impl Heads {
    /// Elements of all query heads of a row.
    pub fn row(&self) -> usize {
        self.kv_heads * self.group * self.head_dim
    }

    /// Bytes of a token's keys and values.
    pub(super) fn token_bytes(&self) -> usize {
        self.kv_heads * self.head_dim * 4
    }
}

/// The extents of a launch of attention.
pub(in crate::cuda::plan) fn shape(rows: usize, heads: Heads, context: usize) -> Shape {
    Shape::new(&[
        ("rows", rows),
        ("kv_heads", heads.kv_heads),
        ("group", heads.group),
        ("head_dim", heads.head_dim),
        ("context", context),
    ])
}
