//! Refuses models that the kernels cannot run, before anything is allocated.

use crate::cuda::error::CudaError;
use crate::cuda::plan;
use crate::model::{Activation, LayerRope, ModelConfig, RopeScaling};

/// Activation rows are read 16 bytes at a time.
const ROW_ELEMENTS: usize = 8;

/// Refuses a model that the kernels do not cover.
pub fn check_supported(config: &ModelConfig) -> Result<(), CudaError> {
    let refuse = |name: &str, found: usize, supported: &str| {
        let what = format!("{name} = {found}");
        Err(CudaError::Unsupported { what, supported: supported.into() })
    };
    if !plan::attention::supports(config.head_dim) {
        return refuse("head_dim", config.head_dim, "heads of 64 or 128");
    }
    let widths =
        [("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size)];
    for (name, width) in widths {
        if !width.is_multiple_of(ROW_ELEMENTS) {
            return refuse(name, width, "multiples of 8");
        }
    }
    refuse_family(config)?;
    // Counts of the kernels are 32-bit and signed.
    if config.vocab_size >= 1 << 31 {
        return refuse("vocab_size", config.vocab_size, "fewer than 2^31 tokens");
    }
    Ok(())
}

/// Refuses what the kernels do not compute.
fn refuse_family(config: &ModelConfig) -> Result<(), CudaError> {
    let architecture = config.architecture;
    let mut layer_ropes = (0..config.num_layers).map(|layer| config.layer_rope(layer));
    let is_rope_by_layer = layer_ropes.any(|rope| rope != LayerRope::Global);
    let lacking = [
        ("gated delta nets", config.delta_net.is_some()),
        ("experts", config.mixture.is_some()),
        ("YaRN", matches!(config.rope.scaling, RopeScaling::Yarn(_))),
        ("LongRoPE", matches!(config.rope.scaling, RopeScaling::LongRope { .. })),
        ("partial RoPE", config.rotary_dim.is_some()),
        ("norms after attention and MLP", architecture.has_post_norms()),
        ("another scale of the scores", config.attention_scale.is_some()),
        ("GeGLU", config.activation != Activation::Silu),
        ("a scaled embedding", config.embedding_scale != 1.0),
        ("a residual multiplier", config.residual_multiplier != 1.0),
        ("scaled logits", config.logits_scaling != 1.0),
        ("RoPE by layer", is_rope_by_layer),
    ];
    match lacking.into_iter().find(|(_, is_needed)| *is_needed) {
        None => Ok(()),
        Some((what, _)) => Err(CudaError::Unsupported {
            what: format!("{architecture:?} with {what}"),
            supported: "Llama, Mistral, Qwen2 and Qwen3, or --device cpu".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Architecture;

    /// A change to a supported model, and the part of the message that names it.
    type Lacking = (fn(&mut ModelConfig), &'static str);

    #[test]
    fn what_the_kernels_lack_is_named() {
        let table: [Lacking; 16] = [
            (|config| config.head_dim = 96, "head_dim = 96"),
            (|config| config.hidden_size = 2052, "hidden_size = 2052"),
            (|config| config.intermediate_size = 12, "intermediate_size = 12"),
            (|config| config.vocab_size = 1 << 31, "vocab_size"),
            (|config| config.architecture = Architecture::Gemma3, "Gemma3 with norms after"),
            (
                |config| config.mixture = ModelConfig::named("qwen3-30b-a3b").unwrap().mixture,
                "Llama with experts",
            ),
            (
                |config| config.delta_net = ModelConfig::named("qwen3.5-0.8b").unwrap().delta_net,
                "Llama with gated delta nets",
            ),
            (|config| config.attention_scale = Some(0.1), "another scale of the scores"),
            (|config| config.activation = Activation::GeluTanh, "GeGLU"),
            (|config| config.embedding_scale = 2.0, "a scaled embedding"),
            (|config| config.residual_multiplier = 0.2, "a residual multiplier"),
            (|config| config.logits_scaling = 8.0, "scaled logits"),
            (|config| config.rotary_dim = Some(96), "partial RoPE"),
            (
                |config| {
                    config.rope.scaling = RopeScaling::LongRope { attention_factor: 1.2 };
                },
                "LongRoPE",
            ),
            (|config| config.layers_without_rope = vec![3], "RoPE by layer"),
            (
                |config| {
                    config.local_rope = Some(config.rope);
                    config.windows[1] = Some(16);
                },
                "RoPE by layer",
            ),
        ];
        let supported = ModelConfig::named("llama3-8b").unwrap();
        for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3] {
            let config = ModelConfig { architecture, ..supported.clone() };
            assert!(check_supported(&config).is_ok(), "{architecture:?}");
        }
        for (change, part) in table {
            let mut config = supported.clone();
            change(&mut config);
            let message = check_supported(&config).unwrap_err().to_string();
            assert!(message.contains(part) && message.lines().count() == 1, "{message}");
        }
    }
}
