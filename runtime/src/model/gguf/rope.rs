//! The rotary embedding of a model from the metadata of its GGUF file.

use super::config::Keys;
use super::metadata::Value;
use crate::model::rope_file::{DEFAULT_BETA_FAST, DEFAULT_BETA_SLOW};
use crate::model::size_limits::{MAX_CONTEXT, MAX_WIDTH};
use crate::model::{Architecture, LoadError, RopeConfig, RopeScaling, Yarn};

/// Base of the rotary frequencies of a file that names none, and of Gemma's local layers.
const DEFAULT_ROPE_BASE: f64 = 10_000.0;

/// Reads the dimensions of a head that are rotated; `None`: all.
pub(super) fn rotary_dim(keys: &Keys<'_>, head_dim: usize) -> Result<Option<usize>, LoadError> {
    let name = "rope.dimension_count";
    let rotated = keys.optional_size(name, MAX_WIDTH)?.unwrap_or(head_dim);
    match keys.architecture.has_partial_rope() {
        _ if rotated == head_dim => Ok(None),
        true if rotated < head_dim && rotated.is_multiple_of(2) => Ok(Some(rotated)),
        true => Err(keys.refuse(name, &format!("an even number up to {head_dim}"))),
        false => Err(keys.refuse(name, &format!("the width of a head ({head_dim})"))),
    }
}

/// Reads the rotary embedding, of the global layers where there are local ones.
pub(super) fn rope(keys: &Keys<'_>) -> Result<RopeConfig, LoadError> {
    let theta = match keys.optional_positive("rope.freq_base")? {
        Some(theta) => theta,
        // Gemma was trained with another base than the default.
        None if keys.architecture == Architecture::Gemma3 => {
            return Err(keys.refuse("rope.freq_base", "the base of the global layers"));
        }
        None => DEFAULT_ROPE_BASE,
    };
    let name = "rope.scaling.type";
    // `rope.scale_linear` is the key of old files. A factor of 0 is no scaling, as in llama.cpp.
    let mut factor = None;
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        let is_zero = keys.get(key) == Some(&Value::Float(0.0));
        factor = factor.or(if is_zero { None } else { keys.optional_positive(key)? });
    }
    let scaling = match (keys.text(name)?, factor) {
        (Some("yarn"), Some(factor)) if keys.architecture == Architecture::GptOss => {
            if theta <= 1.0 {
                return Err(keys.refuse("rope.freq_base", "more than 1 with YaRN"));
            }
            RopeScaling::Yarn(yarn(keys, factor)?)
        }
        // The divisors are tensors; files of Phi-3 name no kind of scaling.
        (None | Some("longrope"), None) if keys.architecture == Architecture::Phi3 => {
            match keys.optional_positive("rope.scaling.attn_factor")? {
                None => RopeScaling::None,
                Some(attention_factor) => RopeScaling::LongRope { attention_factor },
            }
        }
        (Some("none"), _) | (None | Some("linear"), None) => RopeScaling::None,
        (None | Some("linear"), Some(factor)) => RopeScaling::Linear { factor },
        _ => return Err(keys.refuse(name, "\"none\" or \"linear\"")),
    };
    Ok(RopeConfig { theta, scaling })
}

/// Reads gpt-oss's YaRN: its ramp is not cut to whole dimensions, which no file says.
fn yarn(keys: &Keys<'_>, factor: f64) -> Result<Yarn, LoadError> {
    let original = "rope.scaling.original_context_length";
    let context = keys.size(original, MAX_CONTEXT)?;
    let beta =
        |name: &str, default: f64| keys.optional_positive(name).map(|beta| beta.unwrap_or(default));
    Ok(Yarn {
        factor,
        beta_fast: beta("rope.scaling.yarn_beta_fast", DEFAULT_BETA_FAST)?,
        beta_slow: beta("rope.scaling.yarn_beta_slow", DEFAULT_BETA_SLOW)?,
        original_context: context as f64,
        truncate: false,
        attention_factor: Yarn::attention_factor_of(factor),
    })
}

/// Reads the rotary embedding of the layers with a window, where it is another one.
pub(super) fn local_rope(
    keys: &Keys<'_>,
    windows: &[Option<usize>],
) -> Result<Option<RopeConfig>, LoadError> {
    let has_local =
        keys.architecture == Architecture::Gemma3 && windows.iter().any(Option::is_some);
    if !has_local {
        return Ok(None);
    }
    let theta = keys.optional_positive("rope.freq_base_swa")?.unwrap_or(DEFAULT_ROPE_BASE);
    Ok(Some(RopeConfig { theta, scaling: RopeScaling::None }))
}
