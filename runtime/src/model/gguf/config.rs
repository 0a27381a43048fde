//! The configuration of a model from the metadata of its GGUF file.

use std::collections::HashSet;

use trail_cpu_kernels::Activation;

use super::metadata::{Metadata, Value};
use super::rope;
use crate::model::size_limits::{
    MAX_CONTEXT, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH,
};
use crate::model::{Architecture, LoadError, MixtureConfig, ModelConfig, RopePairing};

/// Layers from one of Gemma's global layers to the next.
const DEFAULT_WINDOW_PERIOD: usize = 6;
/// Layers of Gemma 3 27B, which scales the scores by another width than that of its heads.
const GEMMA_27B_LAYERS: usize = 62;
/// Type of a control token in `tokenizer.ggml.token_type`.
const CONTROL_TOKEN: i64 = 3;

/// Families by their names in `general.architecture`.
const FAMILIES: [(&str, Architecture); 10] = [
    ("llama", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("gemma3", Architecture::Gemma3),
    ("phi3", Architecture::Phi3),
    ("granite", Architecture::Granite),
    ("qwen2moe", Architecture::Qwen2Moe),
    ("qwen3moe", Architecture::Qwen3Moe),
    ("olmoe", Architecture::Olmoe),
    ("gpt-oss", Architecture::GptOss),
];
/// Granite's factors: of the scores, what blocks add, the embedding; and the divisor of the logits.
const MULTIPLIERS: [&str; 4] =
    ["attention.scale", "residual_scale", "embedding_scale", "logit_scale"];
/// Keys of settings that the forward pass lacks: any other value than 0 or false is refused, as
/// those of [`MULTIPLIERS`] in other families.
const UNSUPPORTED: [&str; 5] = [
    "expert_weights_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention.max_alibi_bias",
    "attention.clamp_kqv",
];
/// Tokens that end an answer, besides those that the metadata names, whatever type the file gives
/// them: converters have given them others than `CONTROL`.
pub(crate) const END_TOKENS: [&str; 10] = [
    "<|return|>",
    "<|call|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "<|end_of_text|>",
];
/// The same where they are control tokens: in some vocabularies they are text, a tag of HTML.
const CONTROL_END_TOKENS: [&str; 2] = ["</s>", "<eos>"];

/// Keys of the architecture: `llama.block_count` is `block_count`.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'a str,
    pub(super) architecture: Architecture,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(super) fn size(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.metadata.size(&self.key(name), max)
    }

    pub(super) fn optional_size(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        self.metadata.optional_size(&self.key(name), max)
    }

    pub(super) fn optional_positive(&self, name: &str) -> Result<Option<f64>, LoadError> {
        self.metadata.optional_positive(&self.key(name))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, LoadError> {
        self.metadata.text(&self.key(name))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.metadata.get(&self.key(name))
    }

    pub(super) fn refuse(&self, name: &str, expected: &str) -> LoadError {
        let remedy = "choose a model of a supported family, or its safetensors files";
        self.metadata.refuse(&self.key(name), expected, remedy)
    }
}

/// Reads the configuration. `tied`: the file has no separate output projection.
pub(super) fn read(metadata: &Metadata, tied: bool) -> Result<ModelConfig, LoadError> {
    let (prefix, architecture) = architecture(metadata)?;
    let keys = Keys { metadata, prefix, architecture };
    refuse_unsupported(&keys)?;
    let hidden_size = keys.size("embedding_length", MAX_WIDTH)?;
    let num_layers = keys.size("block_count", MAX_LAYERS)?;
    let num_heads = keys.size("attention.head_count", MAX_HEADS)?;
    let max_context = keys.size("context_length", MAX_CONTEXT)?;
    let vocab_size = vocab_size(&keys)?;
    let windows = windows(&keys, num_layers, max_context)?;
    let is_gemma = architecture == Architecture::Gemma3;
    let is_gemma_27b = is_gemma && num_layers == GEMMA_27B_LAYERS;
    let [attention, residual, embedding, logits] = multipliers(&keys)?;
    let mixture = mixture(&keys)?;
    let head_dim = head_dim(&keys, hidden_size, num_heads)?;
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: intermediate_size(&keys)?,
        mixture,
        delta_net: None,
        num_layers,
        num_heads,
        num_kv_heads: num_kv_heads(&keys, num_heads)?,
        head_dim,
        rotary_dim: rope::rotary_dim(&keys, head_dim)?,
        vocab_size,
        max_context,
        rms_norm_eps: rms_norm_eps(&keys)?,
        rope: rope::rope(&keys)?,
        rope_factors: None,
        long_rope: None,
        local_rope: rope::local_rope(&keys, &windows)?,
        layers_without_rope: Vec::new(),
        rope_pairing: match architecture {
            Architecture::Llama | Architecture::Mixtral | Architecture::Granite => {
                RopePairing::Adjacent
            }
            _ => RopePairing::Halves,
        },
        attention_scale: match is_gemma_27b {
            true => Some(1.0 / (hidden_size as f32 / num_heads as f32).sqrt()),
            false => attention,
        },
        embedding_scale: match is_gemma {
            true => (hidden_size as f32).sqrt(),
            false => embedding.unwrap_or(1.0),
        },
        residual_multiplier: residual.unwrap_or(1.0),
        logits_scaling: logits.unwrap_or(1.0),
        activation: match architecture {
            Architecture::Gemma3 => Activation::GeluTanh,
            Architecture::GptOss => Activation::SwigluOai,
            _ => Activation::Silu,
        },
        windows,
        tie_word_embeddings: tied,
        bos_token: metadata.token("tokenizer.ggml.bos_token_id", vocab_size)?,
        eos_tokens: eos_tokens(metadata, vocab_size)?,
    })
}

/// The name of a family in `general.architecture`, if llama.cpp's files of it are read.
pub(in crate::model) fn family_name(architecture: Architecture) -> Option<&'static str> {
    let of_files = match architecture {
        Architecture::Mistral | Architecture::Mixtral => Architecture::Llama,
        other => other,
    };
    FAMILIES.iter().find(|family| family.1 == of_files).map(|family| family.0)
}

/// Reads the family.
pub(super) fn architecture(metadata: &Metadata) -> Result<(&str, Architecture), LoadError> {
    let key = "general.architecture";
    let name = metadata.text(key)?;
    let family = FAMILIES.iter().find(|family| Some(family.0) == name);
    let family = family.copied().ok_or_else(|| {
        let expected = format!("one of {}", FAMILIES.map(|family| family.0).join(", "));
        metadata.refuse(key, &expected, "choose a model of one of these families")
    })?;
    // Files of Mixtral have Llama's name.
    Ok(match (family, metadata.get("llama.expert_count")) {
        ((name, Architecture::Llama), Some(Value::Int(1..))) => (name, Architecture::Mixtral),
        (family, _) => family,
    })
}

/// Width of the MLP; that of the experts in a family whose files have no other.
fn intermediate_size(keys: &Keys<'_>) -> Result<usize, LoadError> {
    let name = match keys.architecture {
        Architecture::GptOss => "expert_feed_forward_length",
        _ => "feed_forward_length",
    };
    keys.size(name, MAX_WIDTH)
}

/// Reads the experts; `None` for a family without. How a family weights them is in no file.
fn mixture(keys: &Keys<'_>) -> Result<Option<MixtureConfig>, LoadError> {
    let architecture = keys.architecture;
    if !architecture.has_experts() {
        let name = "expert_count";
        return match keys.get(name) {
            None | Some(Value::Int(0)) => Ok(None),
            Some(_) => Err(keys.refuse(name, "no experts in this family")),
        };
    }
    let num_experts = keys.size("expert_count", MAX_EXPERTS)?;
    let expert_size = match architecture {
        Architecture::Mixtral | Architecture::Olmoe => "feed_forward_length",
        _ => "expert_feed_forward_length",
    };
    let shared_size = match architecture.has_shared_expert() {
        true => Some(keys.size("expert_shared_feed_forward_length", MAX_WIDTH)?),
        false => None,
    };
    Ok(Some(MixtureConfig {
        num_experts,
        experts_per_token: keys.size("expert_used_count", num_experts)?,
        expert_size: keys.size(expert_size, MAX_WIDTH)?,
        shared_size,
        normalized: !matches!(architecture, Architecture::Qwen2Moe | Architecture::Olmoe),
        dense_layers: Vec::new(),
    }))
}

/// Rejects settings that would load but compute another model than the one trained.
fn refuse_unsupported(keys: &Keys<'_>) -> Result<(), LoadError> {
    let is_granite = keys.architecture == Architecture::Granite;
    for name in UNSUPPORTED.into_iter().chain(MULTIPLIERS.into_iter().filter(|_| !is_granite)) {
        let is_set = match keys.get(name) {
            None | Some(Value::Int(..=0) | Value::Bool(false)) => false,
            Some(Value::Float(value)) => *value != 0.0,
            Some(_) => true,
        };
        if is_set {
            return Err(keys.refuse(name, "no such setting"));
        }
    }
    let is_phi = keys.architecture == Architecture::Phi3;
    let factor = keys.optional_positive("rope.scaling.attn_factor")?;
    if !is_phi && factor.is_some_and(|factor| factor != 1.0) {
        return Err(keys.refuse("rope.scaling.attn_factor", "1 in this family"));
    }
    // llama.cpp's switch of Granite's RoPE.
    let key = "rope.scaling.finetuned";
    if is_granite && keys.metadata.flag(&keys.key(key))? == Some(false) {
        return Err(keys.refuse(key, "true"));
    }
    let key = "attention.causal";
    match keys.metadata.flag(&keys.key(key))? {
        Some(false) => Err(keys.refuse(key, "true")),
        _ => Ok(()),
    }
}

/// Reads the values of [`MULTIPLIERS`], which only Granite has.
fn multipliers(keys: &Keys<'_>) -> Result<[Option<f32>; 4], LoadError> {
    let mut values = [None; 4];
    for (value, name) in values.iter_mut().zip(MULTIPLIERS) {
        let is_unset = matches!(keys.get(name), Some(Value::Float(0.0)));
        if keys.architecture == Architecture::Granite && !is_unset {
            *value = keys.optional_positive(name)?.map(|value| value as f32);
        }
    }
    Ok(values)
}

/// Tokens of the vocabulary: of the tokenizer where the file has one.
fn vocab_size(keys: &Keys<'_>) -> Result<usize, LoadError> {
    let key = "tokenizer.ggml.tokens";
    match keys.metadata.texts(key)? {
        None => keys.size("vocab_size", MAX_VOCAB),
        Some(tokens) if (1..=MAX_VOCAB).contains(&tokens.len()) => Ok(tokens.len()),
        Some(_) => {
            let expected = format!("1 to {MAX_VOCAB} tokens");
            Err(keys.metadata.refuse(key, &expected, "download the file again"))
        }
    }
}

fn num_kv_heads(keys: &Keys<'_>, num_heads: usize) -> Result<usize, LoadError> {
    let name = "attention.head_count_kv";
    let num_kv_heads = keys.optional_size(name, num_heads)?.unwrap_or(num_heads);
    match num_heads.is_multiple_of(num_kv_heads) {
        true => Ok(num_kv_heads),
        false => Err(keys.refuse(name, &format!("a divisor of head_count ({num_heads})"))),
    }
}

/// Reads the head dimension, which must be even.
fn head_dim(keys: &Keys<'_>, hidden_size: usize, num_heads: usize) -> Result<usize, LoadError> {
    let stored = keys.optional_size("attention.key_length", MAX_HEAD_DIM)?;
    let head_dim = stored.unwrap_or(hidden_size / num_heads);
    let divides = stored.is_some() || hidden_size.is_multiple_of(num_heads);
    if !divides || head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        let name = if stored.is_some() { "attention.key_length" } else { "embedding_length" };
        let expected = format!("head_count ({num_heads}) heads of an even width");
        return Err(keys.refuse(name, &expected));
    }
    let name = "attention.value_length";
    match keys.optional_size(name, MAX_WIDTH)?.is_some_and(|width| width != head_dim) {
        true => Err(keys.refuse(name, &format!("the width of a head ({head_dim})"))),
        false => Ok(head_dim),
    }
}

fn rms_norm_eps(keys: &Keys<'_>) -> Result<f32, LoadError> {
    let name = "attention.layer_norm_rms_epsilon";
    let eps = keys.optional_positive(name)?.map(|eps| eps as f32);
    eps.filter(|&eps| eps < 1.0).ok_or_else(|| keys.refuse(name, "a number below 1"))
}

/// Reads the sliding window of each layer: `[num_layers]`. Gemma's windows stay where they cover
/// the context, as they choose the rotary base too.
fn windows(
    keys: &Keys<'_>,
    num_layers: usize,
    max_context: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let name = "attention.sliding_window";
    let window = match keys.get(name) {
        Some(Value::Int(0)) => None,
        _ => keys.optional_size(name, MAX_CONTEXT)?,
    };
    match (keys.architecture, window) {
        (Architecture::GptOss, None) => Err(keys.refuse(name, "a number of tokens")),
        (_, None) => Ok(vec![None; num_layers]),
        (Architecture::Gemma3, window) => {
            let name = "attention.sliding_window_pattern";
            let period = keys.optional_size(name, MAX_LAYERS)?.unwrap_or(DEFAULT_WINDOW_PERIOD);
            let is_global = |layer: usize| (layer + 1).is_multiple_of(period);
            Ok((0..num_layers).map(|layer| window.filter(|_| !is_global(layer))).collect())
        }
        (Architecture::GptOss, window) => {
            Ok((0..num_layers).map(|layer| window.filter(|_| layer % 2 == 0)).collect())
        }
        (_, Some(window)) if window >= max_context => Ok(vec![None; num_layers]),
        (Architecture::Llama | Architecture::Mixtral | Architecture::Phi3, window) => {
            Ok(vec![window; num_layers])
        }
        _ => Err(keys.refuse(name, "no sliding window")),
    }
}

/// Reads all tokens that end an answer.
fn eos_tokens(metadata: &Metadata, vocab_size: usize) -> Result<Vec<u32>, LoadError> {
    let mut ends = Vec::new();
    for kind in ["eos", "eot", "eom"] {
        ends.extend(metadata.token(&format!("tokenizer.ggml.{kind}_token_id"), vocab_size)?);
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let kinds = metadata.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
    // In gpt-oss's vocabulary it ends a message, after which the answer goes on.
    let has_messages = tokens.iter().any(|token| token == "<|return|>");
    for (id, token) in tokens.iter().enumerate() {
        let is_control = kinds.get(id) == Some(&CONTROL_TOKEN);
        let token = token.as_str();
        if has_messages && token == "<|end|>" {
            continue;
        }
        if END_TOKENS.contains(&token) || is_control && CONTROL_END_TOKENS.contains(&token) {
            ends.push(id as u32);
        }
    }
    let mut seen = HashSet::new();
    ends.retain(|end| seen.insert(*end));
    Ok(ends)
}
