//! A model: configuration and weights, independent of the backend that runs it.
//!
//! [`Model::load`] reads the Hugging Face layout and GGUF: [`files`] locates the files,
//! [`ModelConfig::load`] or [`gguf`] reads the configuration, [`archive`] maps the tensors. Every
//! error is a one-line [`LoadError`].

pub mod adapter;
pub mod archive;
pub mod config;
mod config_file;
pub mod delta_net;
mod delta_net_file;
pub mod error;
mod family;
pub(crate) mod fields;
pub mod files;
mod generation_config;
pub mod gguf;
mod gpt_oss;
mod header;
mod inventory;
mod layer_file;
mod load;
mod load_mlp;
mod mapped_file;
pub mod mixture;
mod mixture_file;
pub mod mlp;
mod quantized;
mod random;
pub mod rope;
mod rope_file;
mod shapes;
mod size_limits;
pub mod weights;

pub use adapter::{Adapter, LowRank, Projection};
pub use archive::Archive;
pub use config::{Architecture, LayerRope, ModelConfig, RopePairing};
pub use delta_net::{DeltaNet, DeltaNetConfig};
pub use error::LoadError;
pub use family::families_table;
pub use files::WeightFiles;
pub use generation_config::GenerationConfig;
pub use inventory::TensorInfo;
pub use mixture::MixtureConfig;
pub use mlp::{GatedMlp, Mixture, Mlp, MlpBias};
pub use quantized::Quantization;
pub use rope::{LongRope, RopeConfig, RopeScaling, Yarn};
pub use trail_cpu_kernels::{Activation, Dtype, SWIGLU_ALPHA, SWIGLU_LIMIT};
pub use weights::{LayerWeights, PostNorms, QkNorm, QkvBias, Storage, Tensor, Weights};

/// A loaded model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Shapes and constants.
    pub config: ModelConfig,
    /// Weights in their stored dtype.
    pub weights: Weights,
}

impl Model {
    /// Weights of the layers' matrices that a token is multiplied with: of a mixture's experts
    /// those that it goes to.
    pub fn layer_weights_per_token(&self) -> usize {
        let experts = self.config.mixture.as_ref().map_or(0, |mixture| mixture.experts_per_token);
        self.weights.layers.iter().map(|layer| layer.per_token(experts)).sum()
    }
}
