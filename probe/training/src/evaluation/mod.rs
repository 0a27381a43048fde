//! How good predictions of remaining lengths are: errors, calibration, ranking.
//!
//! A [`Trace`] holds the predictions about one answer at every step: after 0 output tokens (from
//! the prompt), after 1, and so on. Every figure is over all steps of all traces.

mod calibration;
mod error;
mod prompt_only;
mod ranking;
mod trace;

pub use calibration::{Reliability, expected_calibration_error, reliability};
pub use error::{AGES, Age, Mae, best_constant, bin_accuracy, countdown, heat_map, maes};
pub use prompt_only::{BatchTau, PromptOnly};
pub use ranking::{short_behind_long, tau_b};
pub use trace::{Predictors, Trace, of_prompt};

#[cfg(test)]
mod tests;
