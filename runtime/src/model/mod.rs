//! What a model is: its configuration and its weights, independent of how it is run.
//!
//! [`Model::load`] reads the Hugging Face layout: [`files`] finds, [`ModelConfig::load`] reads the
//! configuration, [`archive`] maps the tensors, and every refusal is a [`LoadError`] of one line.

pub mod archive;
pub mod config;
mod config_file;
pub mod error;
pub(crate) mod fields;
pub mod files;
mod header;
mod load;
mod random;
mod rope_file;
pub mod weights;

pub use archive::Archive;
pub use config::{Architecture, ModelConfig, RopeConfig, RopeScaling};
pub use error::LoadError;
pub use files::WeightFiles;
pub use weights::{Dtype, LayerWeights, Storage, Tensor, Weights};

/// A model ready to be run by a backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// Shapes and constants.
    pub config: ModelConfig,
    /// Weights in their stored dtype.
    pub weights: Weights,
}
