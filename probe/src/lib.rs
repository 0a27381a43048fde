#![doc = include_str!("../README.md")]
//! ## Files
//!
//! The path of an activation, one module per stage: activations -> [`head`] (SIMD MLP) ->
//! [`tracker`] ([`smoothing`], [`bins`]) -> [`cell`] -> scheduler. [`checked_tracker`] is for
//! callers that may err. [`mod@file`] reads the weights, [`predictor`] predicts from the prompt
//! alone, and [`reference`](mod@reference) is the `f64` MLP that the tests compare the kernels with.
//!
//! The crate has no clock and no threads, and does not know of CUDA, HTTP or schedulers.
//!
//! Source of the method: TRAIL, "Don't Stop Me Now: Embedding Based Scheduling for LLMs", section
//! 3.1.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod age;
pub mod bins;
pub mod cell;
pub mod checked_tracker;
mod distributions;
pub mod error;
pub mod file;
pub mod head;
pub mod inputs;
mod kernel;
pub mod lengths;
mod line;
mod logarithm;
pub mod packed;
pub mod partials;
pub mod predictor;
pub mod rank_options;
pub mod reference;
pub mod smoothing;
mod softmax;
mod sync;
pub mod tap_layers;
pub mod token_filter;
pub mod tracker;
pub mod weights;

pub use age::{AGE_NAMES, AGES, age_class};
pub use bins::{Bins, MAX_BINS};
pub use cell::{Cell, Reading};
pub use checked_tracker::{CheckedTracker, TrackerMisuse};
pub use distributions::non_finite_row;
pub use error::Error;
pub use file::{Probe, Storage};
pub use head::Head;
pub use inputs::{Beside, Inputs, PromptSums, Rows, log_length};
pub use lengths::Lengths;
pub use packed::HeadDtype;
pub use partials::Partials;
pub use predictor::{LengthPredictor, Prediction, Predictor, Prompt};
pub use rank_options::RankOptions;
pub use smoothing::{FilterOutcome, Smoother};
pub use tap_layers::TapLayers;
pub use token_filter::{Fit, TokenFilter};
pub use tracker::{Estimate, Filter, FilterKind, Tracker};
pub use trail_platform::Isa;
pub use weights::{HeadKind, PromptWeights, Weights};
