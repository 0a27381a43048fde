//! The gated delta rule: a token's update of a value head's matrix, and the head's output.
//!
//! A lane is a column of the matrix, and each sum runs over its rows in ascending order, so that
//! the bits depend neither on the width of a register nor on the other columns.

/// Columns that are computed together: their sums stay in registers.
const BLOCK: usize = 32;

/// Operands of one token and one value head.
pub struct DeltaRule<'a> {
    /// `[key_dim][value_dim]`, changed: it decays, then its value for `key` moves towards `value`.
    pub matrix: &'a mut [f32],
    /// `[key_dim]`
    pub key: &'a [f32],
    /// `[key_dim]`
    pub query: &'a [f32],
    /// `[value_dim]`
    pub value: &'a [f32],
    /// Factor of the matrix before the update.
    pub decay: f32,
    /// Factor of the update.
    pub weight: f32,
    /// The product of the changed matrix and `query`: `[value_dim]`.
    pub out: &'a mut [f32],
}

impl DeltaRule<'_> {
    #[inline(always)]
    pub(super) fn run(mut self) {
        let width = self.value.len();
        assert_eq!((self.matrix.len(), self.out.len()), (self.key.len() * width, width));
        assert_eq!(self.query.len(), self.key.len());
        let blocks = width - width % BLOCK;
        for first in (0..blocks).step_by(BLOCK) {
            self.columns::<BLOCK>(first);
        }
        for column in blocks..width {
            self.columns::<1>(column);
        }
    }

    /// The columns `first..first + N`.
    #[inline(always)]
    fn columns<const N: usize>(&mut self, first: usize) {
        let width = self.value.len();
        let mut products = [0.0; N];
        for (row, &key) in self.matrix.chunks_exact_mut(width).zip(self.key) {
            let row = &mut row[first..first + N];
            for i in 0..N {
                row[i] *= self.decay;
                products[i] += row[i] * key;
            }
        }
        let value = &self.value[first..first + N];
        let mut changes = [0.0; N];
        for i in 0..N {
            changes[i] = self.weight * (value[i] - products[i]);
        }
        let mut out = [0.0; N];
        let rows = self.matrix.chunks_exact_mut(width).zip(self.key).zip(self.query);
        for ((row, &key), &query) in rows {
            let row = &mut row[first..first + N];
            for i in 0..N {
                row[i] += key * changes[i];
                out[i] += row[i] * query;
            }
        }
        self.out[first..first + N].copy_from_slice(&out);
    }
}
