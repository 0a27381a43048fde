//! Refuses models that the kernels cannot run, before anything is allocated.

use crate::cuda::error::CudaError;
use crate::cuda::plan;
use crate::model::{Activation, LayerRope, ModelConfig};

/// Activation rows are read 16 bytes at a time.
const ROW_ELEMENTS: usize = 8;

/// Refuses a model that the kernels do not cover.
pub fn check_supported(config: &ModelConfig) -> Result<(), CudaError> {
    let refuse = |name: &str, found: usize, supported: &str| {
        let what = format!("config.json: {name} = {found}");
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
        ("norms after attention and MLP", architecture.has_post_norms()),
        ("another scale of the scores", config.attention_scale.is_some()),
        ("GeGLU", config.activation != Activation::Silu),
        ("a scaled embedding", config.embedding_scale != 1.0),
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
