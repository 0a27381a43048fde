//! Reading the settings of single layers in `config.json`: sliding windows, and layers without
//! RoPE.

use serde_json::Value;

use super::config::Architecture;
use super::error::LoadError;
use super::family::Family;
use super::fields::Fields;
use super::size_limits::{MAX_CONTEXT, MAX_LAYERS};

/// Default of `max_window_layers` (Qwen), as in transformers.
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;
/// Default of `sliding_window_pattern` (Gemma 3), as in transformers.
const DEFAULT_WINDOW_PATTERN: usize = 6;
/// Default of `no_rope_layer_interval` (SmolLM3), as in transformers.
const DEFAULT_NO_ROPE_INTERVAL: usize = 4;

/// Reads the sliding window of each layer: `[num_layers]`. `without_rope`: the layers without RoPE.
pub(super) fn windows(
    fields: &Fields,
    family: &Family,
    num_layers: usize,
    without_rope: &[usize],
) -> Result<Vec<Option<usize>>, LoadError> {
    let window = window(fields, family)?;
    let all = |is_sliding: &dyn Fn(usize) -> bool| {
        (0..num_layers).map(|layer| window.filter(|_| is_sliding(layer))).collect()
    };
    Ok(match family.architecture {
        // Transformers ignores `layer_types` of these, so the weights were trained without it.
        Architecture::Llama
        | Architecture::Mistral
        | Architecture::Mixtral
        | Architecture::Olmoe
        | Architecture::Qwen3Moe
        | Architecture::Phi3
        | Architecture::Granite
        | Architecture::Qwen35
        | Architecture::Qwen3Next => all(&|_| true),
        _ if fields.get("layer_types").is_some() => by_types(fields, num_layers, window)?,
        Architecture::Ministral => all(&|_| true),
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let full = match fields.get("max_window_layers").and_then(Value::as_u64) {
                Some(0) => 0, // All layers have the window.
                _ => fields
                    .optional_size("max_window_layers", MAX_LAYERS)?
                    .unwrap_or(DEFAULT_MAX_WINDOW_LAYERS),
            };
            all(&|layer| layer >= full)
        }
        Architecture::GptOss => all(&|layer| layer % 2 == 0),
        Architecture::Qwen2Moe => {
            let end = fields.optional_size("max_window_layers", MAX_LAYERS)?;
            let end = end.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
            all(&|layer| layer % 2 == 0 && layer < end)
        }
        Architecture::SmolLm3 => all(&|layer| without_rope.contains(&layer)),
        Architecture::Gemma3 => {
            let pattern = fields.optional_size("sliding_window_pattern", MAX_LAYERS)?;
            let pattern = pattern.unwrap_or(DEFAULT_WINDOW_PATTERN);
            all(&|layer| !(layer + 1).is_multiple_of(pattern))
        }
    })
}

/// Reads the window of the layers that have one; `None` if no layer has.
fn window(fields: &Fields, family: &Family) -> Result<Option<usize>, LoadError> {
    let key = "sliding_window";
    let is_used = match family.architecture {
        Architecture::Llama
        | Architecture::Granite
        | Architecture::Olmoe
        | Architecture::Qwen35
        | Architecture::Qwen3Next => false,
        Architecture::Mistral
        | Architecture::Ministral
        | Architecture::Mixtral
        | Architecture::Phi3
        | Architecture::GptOss
        | Architecture::Gemma3 => true,
        Architecture::Qwen2
        | Architecture::Qwen2Moe
        | Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::SmolLm3 => fields.flag("use_sliding_window")?,
    };
    if !is_used {
        return Ok(None);
    }
    if fields.keys().all(|present| present != key) {
        return Ok(family.window);
    }
    // Transformers' Gemma 3 fails without a window.
    if family.architecture == Architecture::Gemma3 {
        return fields.size(key, MAX_CONTEXT).map(Some);
    }
    fields.optional_size(key, MAX_CONTEXT)
}

/// Reads the layers with the `window` from `layer_types`: `[num_layers]`.
fn by_types(
    fields: &Fields,
    num_layers: usize,
    window: Option<usize>,
) -> Result<Vec<Option<usize>>, LoadError> {
    let key = "layer_types";
    let of_type = |name: &Value| match name.as_str() {
        Some("full_attention") => Some(None),
        Some("sliding_attention") => window.map(Some),
        _ => None,
    };
    let types = fields.get(key).and_then(Value::as_array).filter(|list| list.len() == num_layers);
    types.and_then(|types| types.iter().map(of_type).collect()).ok_or_else(|| {
        let expected = format!(
            "{num_layers} times \"full_attention\", or \"sliding_attention\" with a sliding_window"
        );
        fields.refuse(key, &expected, "choose a model with these attention types only")
    })
}

/// Reads the layers without RoPE, first to last (SmolLM3): those with a 0 in `no_rope_layers`, else
/// the last of every `no_rope_layer_interval`.
pub(super) fn without_rope(
    fields: &Fields,
    family: &Family,
    num_layers: usize,
) -> Result<Vec<usize>, LoadError> {
    if family.architecture != Architecture::SmolLm3 {
        return Ok(Vec::new());
    }
    let key = "no_rope_layers";
    let Some(list) = fields.get(key) else {
        let interval = fields.optional_size("no_rope_layer_interval", MAX_LAYERS)?;
        let interval = interval.unwrap_or(DEFAULT_NO_ROPE_INTERVAL);
        return Ok((0..num_layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect());
    };
    let has_rope = |entry: &Value| entry.as_u64().filter(|flag| *flag <= 1).map(|flag| flag == 1);
    let entries = list.as_array().filter(|list| list.len() >= num_layers);
    let has_rope: Option<Vec<bool>> =
        entries.and_then(|list| list[..num_layers].iter().map(has_rope).collect());
    let layers = has_rope.map(|has| (0..num_layers).filter(|&layer| !has[layer]).collect());
    layers.ok_or_else(|| {
        let expected = format!("{num_layers} times 1 (with RoPE) or 0 (without)");
        fields.refuse(key, &expected, "check that this is the model's config.json")
    })
}
