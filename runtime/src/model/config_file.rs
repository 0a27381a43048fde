//! Reading `config.json`: the Hugging Face spelling of a [`ModelConfig`].

use std::path::Path;

use serde_json::Value;

use super::config::{Activation, Architecture, ModelConfig, RopePairing};
use super::error::LoadError;
use super::fields::Fields;
use super::{files, rope_file};

/// Upper bounds of the sizes: several times the largest Llama, and small enough that no product of
/// sizes overflows.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 10;
pub(super) const MAX_HEADS: usize = 1 << 12;
pub(super) const MAX_HEAD_DIM: usize = 1 << 10;
pub(super) const MAX_VOCAB: usize = 1 << 24;
pub(super) const MAX_CONTEXT: usize = 1 << 28;
// A weight's bytes fit in a usize; positions fit in a u32.
const _: () = assert!((MAX_HEADS * MAX_HEAD_DIM).checked_mul(4 * MAX_WIDTH).is_some());
const _: () = assert!(MAX_VOCAB.checked_mul(4 * MAX_WIDTH).is_some());
const _: () = assert!(MAX_CONTEXT <= u32::MAX as usize);

/// Default of RMSNorm's epsilon, as in transformers.
const DEFAULT_RMS_NORM_EPS: f64 = 1e-6;
/// Sliding window of a Mistral whose config lacks the key, as in transformers.
const DEFAULT_MISTRAL_WINDOW: usize = 4096;

impl ModelConfig {
    /// Reads `config.json` in `folder`, and merges `generation_config.json`'s end-of-sequence
    /// tokens where that file exists.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        let file = folder.join("config.json");
        let mut config = Self::from_json(&file, &files::read_json(&file)?)?;
        let file = folder.join("generation_config.json");
        if let Some(bytes) = files::read_json_if_present(&file)? {
            config.add_eos_tokens(&Fields::parse(&file, &bytes)?)?;
        }
        Ok(config)
    }

    /// Reads the content of a `config.json`; `file` is its name for messages.
    pub fn from_json(file: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let fields = Fields::parse(file, bytes)?;
        let architecture = architecture(&fields)?;
        refuse_unsupported(&fields)?;
        let num_layers = fields.size("num_hidden_layers", MAX_LAYERS)?;
        let vocab_size = fields.size("vocab_size", MAX_VOCAB)?;
        let max_context = fields.size("max_position_embeddings", MAX_CONTEXT)?;
        let hidden_size = fields.size("hidden_size", MAX_WIDTH)?;
        let num_heads = fields.size("num_attention_heads", MAX_HEADS)?;
        let head_dim = head_dim(&fields, hidden_size, num_heads)?;
        let mut config = ModelConfig {
            architecture,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_WIDTH)?,
            num_layers,
            num_heads,
            num_kv_heads: num_kv_heads(&fields, num_heads)?,
            head_dim,
            vocab_size,
            max_context,
            rms_norm_eps: rms_norm_eps(&fields)?,
            rope: rope_file::read(&fields, max_context)?,
            rope_factors: None,
            local_rope: None,
            layers_without_rope: Vec::new(),
            rope_pairing: RopePairing::Halves,
            attention_scale: None,
            embedding_scale: 1.0,
            activation: Activation::Silu,
            windows: windows(&fields, architecture, num_layers)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            bos_token: fields.tokens("bos_token_id", vocab_size)?.first().copied(),
            eos_tokens: Vec::new(),
        };
        config.add_eos_tokens(&fields)?;
        Ok(config)
    }

    fn add_eos_tokens(&mut self, fields: &Fields) -> Result<(), LoadError> {
        for token in fields.tokens("eos_token_id", self.vocab_size)? {
            if !self.eos_tokens.contains(&token) {
                self.eos_tokens.push(token);
            }
        }
        Ok(())
    }
}

/// Families by their names in `architectures` and in `model_type`.
const FAMILIES: [(&str, &str, Architecture); 3] = [
    ("LlamaForCausalLM", "llama", Architecture::Llama),
    ("MistralForCausalLM", "mistral", Architecture::Mistral),
    ("MinistralForCausalLM", "ministral", Architecture::Ministral),
];

/// Reads the family from `architectures`, or from `model_type` where that is absent. Where both
/// are there, both must name a known family.
fn architecture(fields: &Fields) -> Result<Architecture, LoadError> {
    const REMEDY: &str = "choose a model of one of these families";
    let model_type = fields.text("model_type")?;
    let of_type = FAMILIES.iter().find(|family| Some(family.1) == model_type);
    let of_class = match fields.get("architectures") {
        Some(list) => {
            let class = list.get(0).and_then(Value::as_str);
            let family = FAMILIES.iter().find(|family| Some(family.0) == class);
            let expected = "LlamaForCausalLM (Llama 2, 3, 3.1, 3.2, Vicuna), MistralForCausalLM or \
                            MinistralForCausalLM";
            Some(family.ok_or_else(|| fields.refuse("architectures", expected, REMEDY))?)
        }
        None => None,
    };
    // Transformers chooses the class by `architectures`, and its defaults by `model_type`: a file
    // in which one of the two is foreign describes another model.
    let unknown = || fields.refuse("model_type", "llama, mistral or ministral", REMEDY);
    match (of_class, of_type, model_type) {
        (Some(family), Some(_), _) | (Some(family), None, None) | (None, Some(family), _) => {
            Ok(family.2)
        }
        (_, None, _) => Err(unknown()),
    }
}

/// Rejects settings that would load but compute another model than the one trained.
fn refuse_unsupported(fields: &Fields) -> Result<(), LoadError> {
    for key in ["attention_bias", "mlp_bias"] {
        if fields.flag(key)? {
            return Err(fields.refuse(key, "false", "choose a model without bias vectors"));
        }
    }
    if fields.get("quantization_config").is_some() {
        let remedy = "choose the unquantized checkpoint of the model";
        return Err(fields.refuse("quantization_config", "bf16, f16 or f32 weights", remedy));
    }
    // `dtype` since transformers 4.56. The tensors carry their own; a file that declares another
    // kind was made for a quantised or converted model.
    for key in ["torch_dtype", "dtype"] {
        let known = ["bfloat16", "float16", "float32", "auto"];
        if fields.text(key)?.is_some_and(|dtype| !known.contains(&dtype)) {
            let remedy = "choose the bf16, f16 or f32 checkpoint of the model";
            return Err(fields.refuse(key, "bfloat16, float16 or float32", remedy));
        }
    }
    if !matches!(fields.text("hidden_act")?, None | Some("silu")) {
        return Err(fields.refuse("hidden_act", "\"silu\"", "choose a model with SwiGLU layers"));
    }
    Ok(())
}

fn num_kv_heads(fields: &Fields, num_heads: usize) -> Result<usize, LoadError> {
    let key = "num_key_value_heads";
    let num_kv_heads = fields.optional_size(key, num_heads)?.unwrap_or(num_heads);
    if !num_heads.is_multiple_of(num_kv_heads) {
        let expected = format!("a divisor of num_attention_heads ({num_heads})");
        return Err(fields.refuse(key, &expected, "check that this is the model's config.json"));
    }
    Ok(num_kv_heads)
}

/// Reads the head dimension, which must be even, as RoPE rotates pairs.
fn head_dim(fields: &Fields, hidden_size: usize, num_heads: usize) -> Result<usize, LoadError> {
    let remedy = "check that this is the model's config.json";
    if let Some(head_dim) = fields.optional_size("head_dim", MAX_HEAD_DIM)? {
        let odd = || fields.refuse("head_dim", "an even number", remedy);
        return if head_dim.is_multiple_of(2) { Ok(head_dim) } else { Err(odd()) };
    }
    let head_dim = hidden_size / num_heads;
    let divides = hidden_size.is_multiple_of(num_heads);
    if !divides || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        let expected = format!(
            "num_attention_heads ({num_heads}) times an even head_dim up to {MAX_HEAD_DIM}"
        );
        return Err(fields.refuse("hidden_size", &expected, "add head_dim if the model has one"));
    }
    Ok(head_dim)
}

fn rms_norm_eps(fields: &Fields) -> Result<f32, LoadError> {
    let eps = fields.optional_positive("rms_norm_eps")?.unwrap_or(DEFAULT_RMS_NORM_EPS) as f32;
    // A larger epsilon would dominate the activations.
    if eps < 1.0 {
        return Ok(eps);
    }
    Err(fields.refuse("rms_norm_eps", "a number below 1", "correct the value"))
}

/// The sliding window of each layer: `[num_layers]`.
fn windows(
    fields: &Fields,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let key = "sliding_window";
    let window = match architecture {
        Architecture::Llama => None,
        _ if fields.keys().all(|present| present != key) => Some(DEFAULT_MISTRAL_WINDOW),
        _ => fields.optional_size(key, MAX_CONTEXT)?,
    };
    let key = "layer_types";
    let types = match fields.get(key) {
        // Transformers' Mistral ignores the key, so the weights were trained without it.
        Some(types) if architecture == Architecture::Ministral => types,
        _ => return Ok(vec![window; num_layers]),
    };
    let of_type = |name: &Value| match name.as_str() {
        Some("full_attention") => Some(None),
        Some("sliding_attention") => window.map(Some),
        _ => None,
    };
    let windows = types.as_array().filter(|types| types.len() == num_layers);
    windows.and_then(|types| types.iter().map(of_type).collect()).ok_or_else(|| {
        let expected = format!(
            "{num_layers} times \"full_attention\", or \"sliding_attention\" with a sliding_window"
        );
        fields.refuse(key, &expected, "choose a model with these attention types only")
    })
}
