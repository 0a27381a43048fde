//! Mixtures of experts, for the tests of all models.

use std::sync::Arc;

use super::config;
use crate::model::{
    Activation, Architecture, Dtype, MixtureConfig, Mlp, Model, ModelConfig, RopeConfig,
    RopeScaling, Tensor, Yarn,
};

/// YaRN with a ramp over the heads of `config`.
fn yarn(config: &ModelConfig) -> RopeConfig {
    let yarn = Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 64.0,
        truncate: true,
        attention_factor: Yarn::attention_factor_of(4.0),
    };
    RopeConfig { scaling: RopeScaling::Yarn(yarn), ..config.rope }
}

/// Experts of every kind: with a shared one, behind a layer with one MLP. More rows than experts
/// share a step, and some experts have equal scores.
pub(super) fn mixtures() -> Vec<Arc<Model>> {
    let mixture = |shared_size, normalized| MixtureConfig {
        num_experts: 7,
        experts_per_token: 3,
        expert_size: 64,
        shared_size,
        normalized,
        dense_layers: vec![0],
    };
    let of = |mixture: MixtureConfig, dtype: Dtype, hidden| {
        let config = config((4, 2), 16, hidden);
        let config = ModelConfig { intermediate_size: 96, mixture: Some(mixture), ..config };
        let mut model = Model::random_of(config, dtype, 9).unwrap();
        let Mlp::Mixture(mixture) = &mut model.weights.layers[1].mlp else { panic!("experts") };
        let mut scores = mixture.router.to_f32();
        // Experts 2, 3 and 5 tie.
        let equal: Vec<f32> = scores[5 * hidden..6 * hidden].to_vec();
        [2, 3].iter().for_each(|e| scores[e * hidden..][..hidden].copy_from_slice(&equal));
        let (rows, bytes) = (mixture.router.rows, bytemuck::cast_slice::<_, u8>(&scores).to_vec());
        mixture.router = Tensor::new(Dtype::F32, rows, hidden, Arc::new(bytes), 0).unwrap();
        Arc::new(model)
    };
    // Biases, sinks and another activation; norms of all heads.
    let family = |architecture, activation, dtype| {
        let mixture = MixtureConfig { dense_layers: Vec::new(), ..mixture(None, true) };
        let config = config((4, 2), 16, 64);
        let (mixture, rope) = (Some(mixture), yarn(&config));
        let config = ModelConfig { architecture, activation, mixture, rope, ..config };
        Arc::new(Model::random_of(config, dtype, 10).unwrap())
    };
    vec![
        family(Architecture::GptOss, Activation::SwigluOai, Dtype::MxFp4),
        family(Architecture::GptOss, Activation::SwigluOai, Dtype::Bf16),
        family(Architecture::Olmoe, Activation::Silu, Dtype::F16),
        of(mixture(None, true), Dtype::Bf16, 64),
        of(mixture(Some(32), false), Dtype::Q4_0, 64),
        of(MixtureConfig { expert_size: 21, ..mixture(Some(30), true) }, Dtype::F32, 50),
    ]
}

/// `model`; if it is a mixture, each row goes to all experts of a layer.
pub(super) fn every_expert(model: &Arc<Model>) -> Arc<Model> {
    let mut model = (**model).clone();
    if let Some(mixture) = &mut model.config.mixture {
        mixture.experts_per_token = mixture.num_experts;
    }
    Arc::new(model)
}
