//! A smaller model beside the model of a backend, which proposes its next tokens.

use std::time::Duration;

use super::{Batch, Sampled, SamplingInputs};

/// Computes and samples rows by a model with the vocabulary of the backend's own.
///
/// Its keys and values are in blocks of the same ids, so that a request has one block table. Called
/// between steps, on the thread of [`super::Backend`]'s methods.
pub trait DraftModel {
    /// Computes `batch` and appends the result of each sampled row, in row order.
    fn step(&mut self, batch: &Batch, sampling: &dyn SamplingInputs, sampled: &mut Vec<Sampled>);

    /// Time to compute one prompt token, measured at start.
    fn token_time(&self) -> Duration;

    /// Time to compute and sample one row, measured at start.
    fn row_time(&self) -> Duration;
}
