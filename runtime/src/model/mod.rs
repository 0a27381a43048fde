//! What a model is: its configuration and its weights, independent of how it is run.

pub mod config;
mod random;
pub mod weights;

pub use config::{Architecture, ModelConfig, RopeConfig, RopeScaling};
pub use weights::{Dtype, LayerWeights, Storage, Tensor, Weights};

/// A model ready to be run by a backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// Shapes and constants.
    pub config: ModelConfig,
    /// Weights in their stored dtype.
    pub weights: Weights,
}
