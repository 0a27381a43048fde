//! Matrices of the reference forward pass.

use crate::model::{LowRank, Tensor};

/// A row-major `[rows, cols]` matrix, and an adapter's part of its products.
pub(super) struct Matrix {
    pub(super) cols: usize,
    data: Vec<f32>,
    added: Option<Box<Added>>,
}

/// The factors of an adapter.
struct Added {
    /// `[rank, cols]`
    a: Matrix,
    /// `[rows, rank]`
    b: Matrix,
    scale: f32,
}

impl Matrix {
    pub(super) fn new(tensor: &Tensor) -> Self {
        Matrix { cols: tensor.cols, data: tensor.to_f32(), added: None }
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// Multiplies the matrix by the column `x`: `[cols] -> [rows]`.
    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let own = self.data.chunks_exact(self.cols).map(|row| dot(row, x) as f32);
        let Some(Added { a, b, scale }) = self.added.as_deref() else { return own.collect() };
        let added = b.apply(&a.apply(x));
        own.zip(added).map(|(own, added)| own + scale * added).collect()
    }

    /// Adds the products with `factors` to those of this matrix.
    pub(super) fn add(&mut self, factors: &LowRank) {
        let LowRank { a, b, scale } = factors;
        // B is kept transposed, `[rank, rows]`.
        let kept = b.to_f32();
        let rows = (0..b.cols).flat_map(|row| kept[row..].iter().step_by(b.cols).copied());
        let b = Matrix { cols: a.rows, data: rows.collect(), added: None };
        let added = Added { a: Matrix::new(a), b, scale: *scale };
        self.added = Some(Box::new(added));
    }
}

/// The sum of products, in f64.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    debug_assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
