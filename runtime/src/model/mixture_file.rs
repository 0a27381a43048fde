//! Reading the mixture of experts of `config.json`.

use serde_json::Value;

use super::MixtureConfig;
use super::config::Architecture;
use super::error::LoadError;
use super::fields::Fields;
use super::size_limits::{MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH};

/// Reads the experts of a model of `num_layers` layers; `None` for a family without.
pub(super) fn read(
    fields: &Fields,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Option<MixtureConfig>, LoadError> {
    if !architecture.has_experts() {
        return Ok(None);
    }
    let num_experts = num_experts(fields)?;
    let is_qwen = matches!(
        architecture,
        Architecture::Qwen2Moe | Architecture::Qwen3Moe | Architecture::Qwen3Next
    );
    let expert_size = if is_qwen { "moe_intermediate_size" } else { "intermediate_size" };
    let shared_size = match architecture.has_shared_expert() {
        true => Some(fields.size("shared_expert_intermediate_size", MAX_WIDTH)?),
        false => None,
    };
    Ok(Some(MixtureConfig {
        num_experts,
        experts_per_token: fields.size("num_experts_per_tok", num_experts)?,
        expert_size: fields.size(expert_size, MAX_WIDTH)?,
        shared_size,
        normalized: match architecture {
            Architecture::Mixtral | Architecture::GptOss => true,
            // True is transformers' default of Qwen3-Next.
            Architecture::Qwen3Next if fields.get("norm_topk_prob").is_none() => true,
            _ => fields.flag("norm_topk_prob")?,
        },
        dense_layers: if is_qwen { dense_layers(fields, num_layers)? } else { Vec::new() },
    }))
}

/// Reads the number of experts, under either of its names.
fn num_experts(fields: &Fields) -> Result<usize, LoadError> {
    match fields.optional_size("num_local_experts", MAX_EXPERTS)? {
        None => fields.size("num_experts", MAX_EXPERTS),
        Some(experts) => Ok(experts),
    }
}

/// Reads the layers with one MLP: those of `mlp_only_layers`, and all but the last of every
/// `decoder_sparse_step` (Qwen).
fn dense_layers(fields: &Fields, num_layers: usize) -> Result<Vec<usize>, LoadError> {
    let step = fields.optional_size("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    let key = "mlp_only_layers";
    let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
    let listed: Option<Vec<usize>> = match fields.get(key) {
        None => Some(Vec::new()),
        Some(list) => list.as_array().and_then(|list| list.iter().map(index).collect()),
    };
    let listed = listed.ok_or_else(|| {
        fields.refuse(key, "a list of layers", "check that this is the model's config.json")
    })?;
    let is_dense = |layer: &usize| listed.contains(layer) || !(layer + 1).is_multiple_of(step);
    Ok((0..num_layers).filter(is_dense).collect())
}
