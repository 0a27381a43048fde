//! PEFT's `adapter_config.json`.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::{MAX_RANK, Projection};
use crate::model::LoadError;
use crate::model::fields::Fields;

const REMEDY: &str = "export a plain LoRA adapter of q, k, v, o, gate, up and down projections";

/// Keys of variants that compute something else, or that train other weights too. Absent, null,
/// false and empty values turn them off.
const OTHERS: [&str; 17] = [
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "fan_in_fan_out",
    "use_qalora",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "layer_replication",
    "megatron_config",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "lora_ga_config",
    "ensure_weight_tying",
];

/// Initializations that change the base model's weights, so that the adapter needs those.
const CHANGED_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// Ranks and scales of an adapter.
pub(super) struct AdapterConfig {
    rank: usize,
    alpha: f64,
    use_rslora: bool,
    /// Modules of other ranks.
    ranks: Vec<(String, usize)>,
    /// Modules of another alpha.
    alphas: Vec<(String, f64)>,
    /// Projections that are named; empty where `target_modules` is a pattern.
    pub(super) targets: Vec<Projection>,
}

impl AdapterConfig {
    /// Reads `bytes`, the content of `file`.
    pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<AdapterConfig, LoadError> {
        let fields = Fields::parse(file, bytes)?;
        refuse_others(&fields)?;
        let rank = |value: &Value| {
            let rank = value.as_u64().and_then(|rank| usize::try_from(rank).ok())?;
            (1..=MAX_RANK).contains(&rank).then_some(rank)
        };
        // Products of factors stay within f32.
        let alpha = |value: &Value| value.as_f64().filter(|alpha| alpha.abs() <= 1e9);
        let ranks = format!("a rank of 1 to {MAX_RANK}");
        Ok(AdapterConfig {
            rank: (fields.get("r").and_then(rank))
                .ok_or_else(|| fields.refuse("r", &ranks, REMEDY))?,
            alpha: (fields.get("lora_alpha").and_then(alpha))
                .ok_or_else(|| fields.refuse("lora_alpha", "a number", REMEDY))?,
            use_rslora: fields.flag("use_rslora")?,
            ranks: pattern(&fields, "rank_pattern", &ranks, rank)?,
            alphas: pattern(&fields, "alpha_pattern", "a number", alpha)?,
            targets: targets(&fields)?,
        })
    }

    /// Rank and scale of `module`, `model.layers.0.self_attn.q_proj` for instance.
    pub(super) fn of(&self, module: &str) -> (usize, f32) {
        let rank = of_pattern(&self.ranks, module).unwrap_or(self.rank);
        let alpha = of_pattern(&self.alphas, module).unwrap_or(self.alpha);
        let divisor = if self.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
        (rank, (alpha / divisor) as f32)
    }
}

/// Refuses what is no plain LoRA adapter.
fn refuse_others(fields: &Fields<'_>) -> Result<(), LoadError> {
    if fields.text("peft_type")? != Some("LORA") {
        return Err(fields.refuse("peft_type", "\"LORA\"", REMEDY));
    }
    let is_off = |value: &Value| match value {
        Value::Bool(is_on) => !is_on,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    for key in OTHERS {
        if fields.get(key).is_some_and(|value| !is_off(value)) {
            return Err(fields.refuse(key, "none: it is not supported", REMEDY));
        }
    }
    if fields.text("bias")?.is_some_and(|bias| bias != "none") {
        return Err(fields.refuse("bias", "\"none\"", REMEDY));
    }
    let init = fields.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
    if CHANGED_BASE.iter().any(|kind| init.to_lowercase().starts_with(kind)) {
        let remedy = "convert the adapter to one of the unchanged base model (PEFT's \
                      path_initial_model_for_weight_conversion)";
        return Err(fields.refuse("init_lora_weights", "one that keeps the base model", remedy));
    }
    Ok(())
}

/// The projections that `target_modules` names.
fn targets(fields: &Fields<'_>) -> Result<Vec<Projection>, LoadError> {
    let Some(Value::Array(names)) = fields.get("target_modules") else { return Ok(Vec::new()) };
    let projection = |name: &Value| {
        let name = name.as_str()?;
        Projection::named(name.rsplit('.').next().unwrap_or(name))
    };
    names.iter().map(projection).collect::<Option<_>>().ok_or_else(|| {
        let expected = "names of q, k, v, o, gate, up and down projections";
        fields.refuse("target_modules", expected, REMEDY)
    })
}

/// Modules, by the ends of their names, and their values. PEFT reads the names as expressions.
fn pattern<T>(
    fields: &Fields<'_>,
    key: &'static str,
    expected: &str,
    value_of: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(String, T)>, LoadError> {
    let none = Map::new();
    let map = match fields.get(key) {
        None => &none,
        Some(Value::Object(map)) => map,
        Some(_) => return Err(fields.refuse(key, "an object", REMEDY)),
    };
    let entry = |(name, value): (&String, &Value)| {
        let name = name.strip_prefix('^').unwrap_or(name);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
        let is_name = !name.is_empty() && name.chars().all(is_plain);
        Some((name.to_owned(), value_of(value).filter(|_| is_name)?))
    };
    let pattern: Option<Vec<(String, T)>> = map.iter().map(entry).collect();
    let pattern = pattern.filter(|pattern| {
        let names: HashSet<&str> = pattern.iter().map(|(name, _)| &**name).collect();
        // PEFT takes the first that matches, and a map has no order here.
        names.iter().all(|name| !shorter_ends(name).any(|end| names.contains(end)))
    });
    pattern.ok_or_else(|| {
        let expected = format!(
            "names of modules, without expressions and none the end of another, each with {expected}"
        );
        fields.refuse(key, &expected, REMEDY)
    })
}

/// The ends of a module's name that are names too, shorter than it.
fn shorter_ends(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(dot, _)| &name[dot + 1..])
}

/// The value of the name that `module` is or ends in.
fn of_pattern<T: Copy>(pattern: &[(String, T)], module: &str) -> Option<T> {
    let is = |name: &str| name == module || shorter_ends(module).any(|end| end == name);
    pattern.iter().find(|(name, _)| is(name)).map(|&(_, value)| value)
}
