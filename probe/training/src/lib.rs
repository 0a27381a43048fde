//! Learning how long answers become: collected activations, training, evaluation.
//!
//! The path of the data, one module per stage: [`shard`] (activations with their remaining lengths,
//! in files) or [`matrix`] (in memory) -> [`dataset`] (the rows of a split) -> [`train`] ([`mlp`],
//! AdamW) -> [`trail_probe::Probe`]. Prompts alone -> [`mod@predictor`] ([`objective`]) ->
//! [`trail_probe::Predictor`].
//!
//! The crate runs no model, has no clock and no command line: `trail-rt probe` drives it.

#![forbid(unsafe_code)]

pub mod dataset;
pub mod evaluation;
pub mod fit;
pub mod inference;
pub mod matrix;
pub mod mlp;
pub mod objective;
pub mod predictor;
pub mod shard;
pub mod state;
pub mod train;

pub use dataset::{DataError, Dataset};
pub use matrix::Matrix;
pub use shard::{Answer, Collected, Row, Shard, ShardError};
pub use train::{Epoch, Recipe, Trainer};
