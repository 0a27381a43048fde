//! Activations in memory, with their labels: what another program has collected.

use trail_probe::non_finite_row;

use crate::dataset::DataError;

/// Activations `[rows, d]` that stay where they are, each with the output tokens that remained.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    width: usize,
    remaining: &'a [u32],
    /// The answer of each row; empty if no two rows have the same.
    answers: &'a [u32],
}

impl<'a> Matrix<'a> {
    /// Rows of `values`, each `width` wide, after which `remaining` output tokens came. `answers`
    /// numbers the answer of each row: those of one answer are trained on or validated together,
    /// and share its weight. Fails if the lengths differ, or a value is not finite.
    pub fn new(
        values: &'a [f32],
        width: usize,
        remaining: &'a [u32],
        answers: &'a [u32],
    ) -> Result<Matrix<'a>, DataError> {
        let rows = remaining.len();
        if width == 0 || values.len() != rows * width {
            return Err(DataError(format!(
                "there are {} values in rows of {width}, and {rows} remaining lengths: give one \
                 length for each row",
                values.len()
            )));
        }
        if !answers.is_empty() && answers.len() != rows {
            return Err(DataError(format!(
                "there are {} numbers of answers for {rows} rows: give one for each row",
                answers.len()
            )));
        }
        if let Some(row) = non_finite_row(values, width) {
            return Err(DataError(format!("row {row} has NaN or infinity")));
        }
        Ok(Matrix { values, width, remaining, answers })
    }

    /// Width of an activation.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The activation of `row`.
    pub fn activation(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.width..][..self.width]
    }

    /// Output tokens that remain, by row.
    pub fn remaining(&self) -> &'a [u32] {
        self.remaining
    }

    /// The answer of `row`.
    pub fn answer(&self, row: usize) -> u32 {
        self.answers.get(row).copied().unwrap_or(row as u32)
    }
}
