//! Reading `config.json`: the Hugging Face spelling of a [`ModelConfig`].

use std::path::Path;

use trail_cpu_kernels::{Activation, SWIGLU_ALPHA, SWIGLU_LIMIT};

use super::config::{Architecture, ModelConfig, RopePairing};
use super::error::LoadError;
use super::family::{self, Family};
use super::fields::Fields;
use super::quantized::Quantization;
use super::size_limits::{MAX_CONTEXT, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
use super::{delta_net_file, files, layer_file, mixture_file, rope_file};

/// Default of Gemma 3's `query_pre_attn_scalar`, as in transformers.
const DEFAULT_QUERY_SCALAR: f64 = 256.0;

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
        let fields = family::text_settings(Fields::parse(file, bytes)?)?;
        let family = Family::of(&fields)?;
        let architecture = family.architecture;
        refuse_unsupported(&fields, architecture)?;
        let num_layers = fields.size("num_hidden_layers", MAX_LAYERS)?;
        let vocab_size = fields.size("vocab_size", MAX_VOCAB)?;
        let max_context = fields.size("max_position_embeddings", MAX_CONTEXT)?;
        let hidden_size = fields.size("hidden_size", MAX_WIDTH)?;
        let num_heads = fields.size("num_attention_heads", MAX_HEADS)?;
        let head_dim = head_dim(&fields, family, hidden_size, num_heads)?;
        let (rope, local_rope) = rope_file::read(&fields, family, max_context)?;
        let rotary_dim = rope_file::rotary_dim(&fields, family, head_dim)?;
        let rotated = rotary_dim.unwrap_or(head_dim);
        let layers_without_rope = layer_file::without_rope(&fields, family, num_layers)?;
        let windows = layer_file::windows(&fields, family, num_layers, &layers_without_rope)?;
        let is_gemma = architecture == Architecture::Gemma3;
        // Granite's factors, as in transformers; other families have no such keys.
        let multiplier = |key| match architecture {
            Architecture::Granite => Ok(fields.optional_positive(key)?.unwrap_or(1.0) as f32),
            _ => Ok(1.0),
        };
        let mut config = ModelConfig {
            architecture,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_WIDTH)?,
            mixture: mixture_file::read(&fields, architecture, num_layers)?,
            delta_net: delta_net_file::read(&fields, architecture, num_layers)?,
            num_layers,
            num_heads,
            num_kv_heads: num_kv_heads(&fields, family, num_heads)?,
            head_dim,
            rotary_dim,
            vocab_size,
            max_context,
            rms_norm_eps: rms_norm_eps(&fields, family)?,
            rope,
            rope_factors: None,
            long_rope: rope_file::long_rope(&fields, &rope, rotated, max_context)?,
            local_rope,
            layers_without_rope,
            rope_pairing: RopePairing::Halves,
            attention_scale: attention_scale(&fields, architecture)?,
            embedding_scale: match is_gemma {
                true => (hidden_size as f64).sqrt() as f32,
                false => multiplier("embedding_multiplier")?,
            },
            residual_multiplier: multiplier("residual_multiplier")?,
            logits_scaling: multiplier("logits_scaling")?,
            activation: match architecture {
                Architecture::Gemma3 => Activation::GeluTanh,
                Architecture::GptOss => Activation::SwigluOai,
                _ => Activation::Silu,
            },
            windows,
            tie_word_embeddings: match fields.get("tie_word_embeddings") {
                None => family.is_tied,
                Some(_) => fields.flag("tie_word_embeddings")?,
            },
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

/// Rejects settings that would load but compute another model than the one trained.
fn refuse_unsupported(fields: &Fields, architecture: Architecture) -> Result<(), LoadError> {
    for key in ["attention_bias", "mlp_bias"] {
        // Transformers' Qwen2 ignores the key: it has biases on q, k and v, and only there.
        let is_read = !(architecture.has_qkv_bias() && key == "attention_bias");
        if is_read && fields.flag(key)? {
            return Err(fields.refuse(key, "false", "choose a model without bias vectors"));
        }
    }
    if fields.flag("use_bidirectional_attention")? {
        let remedy = "choose a model that generates text";
        return Err(fields.refuse("use_bidirectional_attention", "false", remedy));
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"] {
        if fields.get(key).is_some() {
            return Err(fields.refuse(key, "null", "choose a model without this limit of values"));
        }
    }
    let quantization = fields.object("quantization_config", "quantization_config.")?;
    let method = quantization.as_ref().map(|quantization| quantization.text("quant_method"));
    let is_mxfp4 = method.transpose()?.flatten() == Some("mxfp4");
    if quantization.is_some() && is_mxfp4 != (architecture == Architecture::GptOss) {
        let expected = if is_mxfp4 { "gpt-oss for mxfp4" } else { "mxfp4 for gpt-oss" };
        let remedy = "choose the unquantized checkpoint of the model";
        return Err(fields.refuse("quantization_config", expected, remedy));
    }
    Quantization::of_config(fields)?;
    // `dtype` since transformers 4.56. The tensors carry their own; a file that declares another
    // kind was made for a quantised or converted model.
    for key in ["torch_dtype", "dtype"] {
        let known = ["bfloat16", "float16", "float32", "auto"];
        if fields.text(key)?.is_some_and(|dtype| !known.contains(&dtype)) {
            let remedy = "choose the bf16, f16 or f32 checkpoint of the model";
            return Err(fields.refuse(key, "bfloat16, float16 or float32", remedy));
        }
    }
    for (key, value) in [("swiglu_limit", SWIGLU_LIMIT), ("swiglu_alpha", SWIGLU_ALPHA)] {
        let stored = fields.optional_positive(key)?;
        if architecture == Architecture::GptOss && stored.is_some_and(|x| x as f32 != value) {
            return Err(fields.refuse(key, &value.to_string(), "choose a model of OpenAI's"));
        }
    }
    let (key, activation, remedy) = match architecture {
        Architecture::Gemma3 => {
            ("hidden_activation", "gelu_pytorch_tanh", "choose a model with GeGLU layers")
        }
        _ => ("hidden_act", "silu", "choose a model with SwiGLU layers"),
    };
    match fields.text(key)? {
        Some(other) if other != activation => {
            Err(fields.refuse(key, &format!("{activation:?}"), remedy))
        }
        _ => Ok(()),
    }
}

/// Reads the factor of the scores, if the family's config.json has one.
fn attention_scale(fields: &Fields, architecture: Architecture) -> Result<Option<f32>, LoadError> {
    Ok(match architecture {
        Architecture::Gemma3 => {
            let scalar = fields.optional_positive("query_pre_attn_scalar")?;
            Some(scalar.unwrap_or(DEFAULT_QUERY_SCALAR).powf(-0.5) as f32)
        }
        Architecture::Granite => {
            Some(fields.optional_positive("attention_multiplier")?.unwrap_or(1.0) as f32)
        }
        _ => None,
    })
}

/// Reads the number of KV heads. A null is the number of query heads; without the key it is the
/// family's default.
fn num_kv_heads(fields: &Fields, family: &Family, num_heads: usize) -> Result<usize, LoadError> {
    let key = "num_key_value_heads";
    let is_absent = fields.keys().all(|present| present != key);
    let default = family.num_kv_heads.filter(|_| is_absent).unwrap_or(num_heads);
    let num_kv_heads = fields.optional_size(key, num_heads)?.unwrap_or(default);
    if !num_heads.is_multiple_of(num_kv_heads) {
        let expected = format!("a divisor of num_attention_heads ({num_heads})");
        return Err(fields.refuse(key, &expected, "check that this is the model's config.json"));
    }
    Ok(num_kv_heads)
}

/// Reads the head dimension, which must be even, as RoPE rotates pairs.
fn head_dim(
    fields: &Fields,
    family: &Family,
    hidden_size: usize,
    num_heads: usize,
) -> Result<usize, LoadError> {
    let remedy = "check that this is the model's config.json";
    if let Some(head_dim) = fields.optional_size("head_dim", MAX_HEAD_DIM)?.or(family.head_dim) {
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

fn rms_norm_eps(fields: &Fields, family: &Family) -> Result<f32, LoadError> {
    let eps = fields.optional_positive("rms_norm_eps")?.unwrap_or(family.rms_norm_eps) as f32;
    // A larger epsilon would dominate the activations.
    if eps < 1.0 {
        return Ok(eps);
    }
    Err(fields.refuse("rms_norm_eps", "a number below 1", "correct the value"))
}
