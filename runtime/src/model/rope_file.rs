//! Reading the RoPE settings of `config.json`.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::config::Architecture;
use super::error::LoadError;
use super::family::Family;
use super::fields::Fields;
use super::rope::{LongRope, RopeConfig, RopeScaling, Yarn};

/// Base of the frequencies of Gemma 3's local layers, as in transformers.
const DEFAULT_LOCAL_THETA: f64 = 10_000.0;
/// Default of the hybrids' `partial_rotary_factor`, as in transformers.
const DEFAULT_PARTIAL: f64 = 0.25;
/// Divisors of frequencies that are taken.
pub(super) const FACTORS: RangeInclusive<f32> = 1e-6..=1e6;
/// Default of YaRN's `beta_fast`, as in transformers.
pub(super) const DEFAULT_BETA_FAST: f64 = 32.0;
/// Default of YaRN's `beta_slow`, as in transformers.
pub(super) const DEFAULT_BETA_SLOW: f64 = 1.0;

/// Reads the RoPE settings of the global layers, and of the local ones if the family has them
/// apart.
pub(super) fn read(
    fields: &Fields,
    family: &Family,
    max_context: usize,
) -> Result<(RopeConfig, Option<RopeConfig>), LoadError> {
    if family.architecture == Architecture::Gemma3 {
        return read_by_layer_type(fields, family, max_context);
    }
    let inner = inner(fields)?;
    if !family.architecture.has_partial_rope() {
        [Some(fields), inner.as_ref()].into_iter().flatten().try_for_each(refuse_partial)?;
    }
    if family.architecture == Architecture::GptOss && inner.is_none() {
        // Transformers takes gpt-oss's own YaRN in its place.
        let remedy = "take config.json as it was published";
        return Err(fields.refuse("rope_scaling", "gpt-oss's YaRN", remedy));
    }
    let theta = ("rope_theta", family.rope_theta);
    Ok((read_one(fields, &[inner], theta, max_context)?, None))
}

/// The object of RoPE's settings, under either of its names.
fn inner<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, LoadError> {
    match fields.object("rope_scaling", "rope_scaling.")? {
        None => fields.object("rope_parameters", "rope_parameters."),
        some => Ok(some),
    }
}

/// Reads the dimensions of a head that are rotated (hybrids, Phi): `partial_rotary_factor` of the
/// heads' `head_dim`; `None`: all.
pub(super) fn rotary_dim(
    fields: &Fields,
    family: &Family,
    head_dim: usize,
) -> Result<Option<usize>, LoadError> {
    if !family.architecture.has_partial_rope() {
        return Ok(None);
    }
    let key = "partial_rotary_factor";
    let of_object = match inner(fields)? {
        None => None,
        Some(object) => object.optional_positive(key)?,
    };
    let default = if family.architecture.is_hybrid() { DEFAULT_PARTIAL } else { 1.0 };
    let factor = of_object.or(fields.optional_positive(key)?).unwrap_or(default);
    let rotated = (head_dim as f64 * factor) as usize;
    if rotated == 0 || rotated > head_dim || !rotated.is_multiple_of(2) {
        let expected = format!("a part of head_dim ({head_dim}) that is an even number");
        return Err(fields.refuse(key, &expected, "check that this is the model's config.json"));
    }
    Ok((rotated < head_dim).then_some(rotated))
}

/// Reads Gemma 3's settings in their two forms: `rope_theta`, `rope_scaling` (of the global layers
/// alone) and `rope_local_base_freq`, or all inside `rope_parameters` by the type of layer.
fn read_by_layer_type(
    fields: &Fields,
    family: &Family,
    max_context: usize,
) -> Result<(RopeConfig, Option<RopeConfig>), LoadError> {
    let (mut full, mut sliding) = (None, None);
    if let Some(types) = fields.object("rope_parameters", "rope_parameters.")? {
        if let Some(key) = types.keys().find(|key| !LAYER_TYPES.contains(key)) {
            return Err(types.refuse(key, &LAYER_TYPES.join(" or "), "correct the key"));
        }
        full = types.object(LAYER_TYPES[0], "rope_parameters.full_attention.")?;
        sliding = types.object(LAYER_TYPES[1], "rope_parameters.sliding_attention.")?;
    }
    let scaling = fields.object("rope_scaling", "rope_scaling.")?;
    let objects = [scaling.as_ref(), full.as_ref(), sliding.as_ref()];
    objects.into_iter().flatten().chain([fields]).try_for_each(refuse_partial)?;
    let theta = ("rope_theta", family.rope_theta);
    let global = read_one(fields, &[scaling, full], theta, max_context)?;
    let theta = ("rope_local_base_freq", DEFAULT_LOCAL_THETA);
    let local = read_one(fields, &[sliding], theta, max_context)?;
    if [global, local].iter().any(|rope| matches!(rope.scaling, RopeScaling::LongRope { .. })) {
        let is_old = fields.get("rope_scaling").is_some();
        let key = if is_old { "rope_scaling" } else { "rope_parameters" };
        return Err(fields.refuse(key, "no LongRoPE by layer", "correct the value"));
    }
    Ok((global, Some(local)))
}

/// Types of layers with RoPE settings of their own: global, local.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Reads one RoPE: the scaling from the first of the objects that is present (its kind is `type` or
/// `rope_type`), the base from `rope_theta` in one of the objects, else from `outer_theta` (key and
/// default).
fn read_one(
    fields: &Fields,
    objects: &[Option<Fields>],
    (outer_theta, default_theta): (&str, f64),
    max_context: usize,
) -> Result<RopeConfig, LoadError> {
    let mut theta = None;
    let mut scaling = None;
    for object in objects.iter().flatten() {
        theta = theta.or(object.optional_positive("rope_theta")?);
        if scaling.is_none() {
            let original_context = original_context(fields, object, max_context)?;
            scaling = Some(read_scaling(object, original_context, max_context)?);
        }
    }
    let outer_theta = fields.optional_positive(outer_theta)?;
    let theta = theta.or(outer_theta).unwrap_or(default_theta);
    let scaling = scaling.unwrap_or(RopeScaling::None);
    if matches!(scaling, RopeScaling::Yarn(_)) && theta <= 1.0 {
        return Err(fields.refuse("rope_theta", "more than 1 with YaRN", "correct the value"));
    }
    Ok(RopeConfig { theta, scaling })
}

/// Rejects partial rotary embedding, which only hybrids and Phi have.
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

/// Keys of plain RoPE.
const UNSCALED: [&str; 2] = ["rope_theta", "partial_rotary_factor"];

/// Reads the frequency scaling of a model trained with `original_context` tokens.
fn read_scaling(
    fields: &Fields,
    original_context: f64,
    max_context: usize,
) -> Result<RopeScaling, LoadError> {
    let key = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    match fields.text(key)? {
        Some("default") => Ok(RopeScaling::None),
        // Without a kind there is no scaling, unless other keys show that one was intended.
        None if fields.keys().all(|key| UNSCALED.contains(&key) || fields.get(key).is_none()) => {
            Ok(RopeScaling::None)
        }
        Some("linear") => Ok(RopeScaling::Linear { factor: fields.positive("factor")? }),
        Some("llama3") => read_llama3(fields, original_context),
        // `su` and, with such lists, `yarn` are its names in the first releases of Phi-3.
        Some(kind @ ("longrope" | "su" | "yarn"))
            if kind != "yarn" || fields.get("short_factor").is_some() =>
        {
            let factor = fields.optional_positive("factor")?;
            let factor = factor.unwrap_or(max_context as f64 / original_context);
            let by_context = match factor <= 1.0 {
                true => 1.0,
                false => (1.0 + factor.ln() / original_context.ln()).sqrt(),
            };
            if original_context <= 1.0 {
                let key = "original_max_position_embeddings";
                return Err(fields.refuse(key, "more than 1 token", "correct the value"));
            }
            let attention_factor = fields.optional_positive("attention_factor")?;
            let attention_factor = attention_factor.unwrap_or(by_context);
            Ok(RopeScaling::LongRope { attention_factor })
        }
        Some("yarn") => read_yarn(fields, original_context),
        // The frequencies change beyond `max_position_embeddings`, where no request goes.
        Some("dynamic") => fields.positive("factor").map(|_| RopeScaling::None),
        _ => {
            let expected =
                "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"";
            Err(fields.refuse(key, expected, "choose a model with one of these"))
        }
    }
}

/// Reads LongRoPE's divisors of the frequencies, for `rotary_dim` dimensions. Transformers chooses
/// by the length of the sequence, so that keys are rotated by the short ones and queries by the
/// long ones once it grows beyond the original context; here, as in vLLM and llama.cpp, the context
/// that is served decides, and an answer has one set.
pub(super) fn long_rope(
    fields: &Fields,
    rope: &RopeConfig,
    rotary_dim: usize,
    max_context: usize,
) -> Result<Option<LongRope>, LoadError> {
    let (RopeScaling::LongRope { .. }, Some(object)) = (rope.scaling, inner(fields)?) else {
        return Ok(None);
    };
    let factors = |key: &str| {
        let factor = |value: &Value| Some(value.as_f64()? as f32).filter(|x| FACTORS.contains(x));
        let list = object.get(key).and_then(Value::as_array).filter(|x| x.len() == rotary_dim / 2);
        let factors: Option<Vec<f32>> = list.and_then(|list| list.iter().map(factor).collect());
        let expected = || format!("{} factors from 1e-6 to 1e6", rotary_dim / 2);
        let remedy = "check that this is the model's config.json";
        factors.ok_or_else(|| object.refuse(key, &expected(), remedy))
    };
    let original_context = original_context(fields, &object, max_context)?;
    Ok(Some(LongRope {
        original_context,
        short: factors("short_factor")?,
        long: factors("long_factor")?,
    }))
}

fn read_yarn(fields: &Fields, original_context: f64) -> Result<RopeScaling, LoadError> {
    for key in ["mscale", "mscale_all_dim"] {
        if fields.get(key).is_some() {
            return Err(fields.refuse(key, "no such key", "choose a model with plain YaRN"));
        }
    }
    let factor = fields.positive("factor")?;
    let attention_factor = fields.optional_positive("attention_factor")?;
    Ok(RopeScaling::Yarn(Yarn {
        factor,
        beta_fast: fields.optional_positive("beta_fast")?.unwrap_or(DEFAULT_BETA_FAST),
        beta_slow: fields.optional_positive("beta_slow")?.unwrap_or(DEFAULT_BETA_SLOW),
        original_context,
        truncate: fields.get("truncate").is_none() || fields.flag("truncate")?,
        attention_factor: attention_factor.unwrap_or(Yarn::attention_factor_of(factor)),
    }))
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
