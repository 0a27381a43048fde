//! Reading the RoPE settings of `config.json`.

use super::config::{RopeConfig, RopeScaling};
use super::error::LoadError;
use super::fields::Fields;

/// Default base of the frequencies, as in transformers.
const DEFAULT_THETA: f64 = 10_000.0;

/// Reads RoPE settings in their three forms: `rope_theta` alone, with `rope_scaling` (whose kind is
/// `type` or `rope_type`), or everything inside `rope_parameters`.
pub(super) fn read(fields: &Fields, max_context: usize) -> Result<RopeConfig, LoadError> {
    let outer_theta = fields.optional_positive("rope_theta")?;
    refuse_partial(fields)?;
    let inner = match fields.object("rope_scaling", "rope_scaling.")? {
        None => fields.object("rope_parameters", "rope_parameters.")?,
        some => some,
    };
    let Some(inner) = inner else {
        let theta = outer_theta.unwrap_or(DEFAULT_THETA);
        return Ok(RopeConfig { theta, scaling: RopeScaling::None });
    };
    refuse_partial(&inner)?;
    let theta = inner.optional_positive("rope_theta")?.or(outer_theta).unwrap_or(DEFAULT_THETA);
    let original_context = original_context(fields, &inner, max_context)?;
    let scaling = read_scaling(&inner, original_context)?;
    Ok(RopeConfig { theta, scaling })
}

/// Rejects partial rotary embedding, which is not supported.
fn refuse_partial(fields: &Fields) -> Result<(), LoadError> {
    let key = "partial_rotary_factor";
    match fields.optional_positive(key)? {
        None | Some(1.0) => Ok(()),
        Some(_) => Err(fields.refuse(key, "1.0 or no such key", "choose a Llama-family model")),
    }
}

/// Original context length, tokens: the outer key takes precedence over the inner, as in
/// transformers.
fn original_context(outer: &Fields, inner: &Fields, max_context: usize) -> Result<f64, LoadError> {
    let key = "original_max_position_embeddings";
    let original = match outer.optional_positive(key)? {
        None => inner.optional_positive(key)?,
        some => some,
    };
    Ok(original.unwrap_or(max_context as f64))
}

/// Reads the frequency scaling of a model trained with `original_context` tokens.
fn read_scaling(fields: &Fields, original_context: f64) -> Result<RopeScaling, LoadError> {
    let key = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    match fields.text(key)? {
        Some("default") => Ok(RopeScaling::None),
        // Without a kind there is no scaling, unless other keys show that one was intended.
        None if fields.keys().all(|key| key == "rope_theta" || fields.get(key).is_none()) => {
            Ok(RopeScaling::None)
        }
        Some("linear") => Ok(RopeScaling::Linear { factor: fields.positive("factor")? }),
        Some("llama3") => read_llama3(fields, original_context),
        _ => {
            let expected = "\"default\", \"linear\" or \"llama3\"";
            Err(fields.refuse(key, expected, "choose a model with one of these"))
        }
    }
}

fn read_llama3(fields: &Fields, original_context: f64) -> Result<RopeScaling, LoadError> {
    let factor = fields.positive("factor")?;
    let low_freq_factor = fields.positive("low_freq_factor")?;
    let high_freq_factor = fields.positive("high_freq_factor")?;
    if high_freq_factor > low_freq_factor {
        return Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        });
    }
    let expected = format!("more than low_freq_factor ({low_freq_factor})");
    Err(fields.refuse("high_freq_factor", &expected, "correct the value"))
}
