//! A model: configuration and weights, independent of the backend that runs it.
//!
//! [`Model::load`] reads the Hugging Face layout and GGUF: [`files`] locates the files,
//! [`ModelConfig::load`] or [`gguf`] reads the configuration, [`archive`] maps the tensors. Every
//! error is a one-line [`LoadError`].

pub mod archive;
pub mod config;
mod config_file;
pub mod error;
mod family;
pub(crate) mod fields;
pub mod files;
mod generation_config;
pub mod gguf;
mod header;
mod inventory;
mod layer_file;
mod load;
mod mapped_file;
mod quantized;
mod random;
mod rope_file;
mod shapes;
mod size_limits;
pub mod weights;

pub use archive::Archive;
pub use config::{Architecture, LayerRope, ModelConfig, RopeConfig, RopePairing, RopeScaling};
pub use error::LoadError;
pub use files::WeightFiles;
pub use generation_config::GenerationConfig;
pub use inventory::TensorInfo;
pub use quantized::Quantization;
pub use trail_cpu_kernels::{Activation, Dtype};
pub use weights::{LayerWeights, PostNorms, QkNorm, QkvBias, Storage, Tensor, Weights};

/// A loaded model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Shapes and constants.
    pub config: ModelConfig,
    /// Weights in their stored dtype.
    pub weights: Weights,
}
