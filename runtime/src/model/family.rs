//! The families of models: their names in `config.json`, and transformers' defaults of the keys
//! that a file may lack.

use serde_json::Value;

use super::config::Architecture;
use super::error::LoadError;
use super::fields::Fields;
use super::gguf;

/// A family of models.
pub(super) struct Family {
    /// Names of its models, as people know them.
    models: &'static str,
    /// Name in `architectures`.
    class: &'static str,
    /// Name in `model_type`.
    model_type: &'static str,
    /// The forward pass.
    pub(super) architecture: Architecture,
    /// Default of `head_dim`; `None` is `hidden_size / num_attention_heads`.
    pub(super) head_dim: Option<usize>,
    /// Default of `num_key_value_heads`; `None` is `num_attention_heads`.
    pub(super) num_kv_heads: Option<usize>,
    /// Default of the base of the rotary frequencies.
    pub(super) rope_theta: f64,
    /// Default of RMSNorm's epsilon.
    pub(super) rms_norm_eps: f64,
    /// Default of `tie_word_embeddings`.
    pub(super) is_tied: bool,
    /// Default of `sliding_window`, tokens.
    pub(super) window: Option<usize>,
}

const LLAMA: Family = Family {
    models: "Llama 2, 3, 3.1, 3.2, TinyLlama, Vicuna, SmolLM2",
    class: "LlamaForCausalLM",
    model_type: "llama",
    architecture: Architecture::Llama,
    head_dim: None,
    num_kv_heads: None,
    rope_theta: 10_000.0,
    rms_norm_eps: 1e-6,
    is_tied: false,
    window: None,
};

const FAMILIES: [Family; 16] = [
    LLAMA,
    Family {
        models: "Mistral",
        class: "MistralForCausalLM",
        model_type: "mistral",
        architecture: Architecture::Mistral,
        window: Some(4096),
        ..LLAMA
    },
    Family {
        models: "Ministral",
        class: "MinistralForCausalLM",
        model_type: "ministral",
        architecture: Architecture::Ministral,
        window: Some(4096),
        ..LLAMA
    },
    Family {
        models: "Qwen2, Qwen2.5",
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        architecture: Architecture::Qwen2,
        num_kv_heads: Some(32),
        window: Some(4096),
        ..LLAMA
    },
    Family {
        models: "Qwen3",
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        architecture: Architecture::Qwen3,
        head_dim: Some(128),
        num_kv_heads: Some(32),
        window: Some(4096),
        ..LLAMA
    },
    Family {
        models: "SmolLM3",
        class: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        architecture: Architecture::SmolLm3,
        num_kv_heads: Some(4),
        rope_theta: 2_000_000.0,
        is_tied: true,
        ..LLAMA
    },
    Family {
        models: "Phi-3, Phi-3.5 mini, Phi-4, Phi-4 mini",
        class: "Phi3ForCausalLM",
        model_type: "phi3",
        architecture: Architecture::Phi3,
        rms_norm_eps: 1e-5,
        ..LLAMA
    },
    Family {
        models: "Granite 3",
        class: "GraniteForCausalLM",
        model_type: "granite",
        architecture: Architecture::Granite,
        ..LLAMA
    },
    Family {
        models: "Gemma 3 (text)",
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        architecture: Architecture::Gemma3,
        head_dim: Some(256),
        num_kv_heads: Some(4),
        rope_theta: 1_000_000.0,
        is_tied: true,
        window: Some(4096),
        ..LLAMA
    },
    Family {
        models: "gpt-oss",
        class: "GptOssForCausalLM",
        model_type: "gpt_oss",
        architecture: Architecture::GptOss,
        head_dim: Some(64),
        num_kv_heads: Some(8),
        rope_theta: 150_000.0,
        rms_norm_eps: 1e-5,
        window: Some(128),
        ..LLAMA
    },
    Family {
        models: "Mixtral",
        class: "MixtralForCausalLM",
        model_type: "mixtral",
        architecture: Architecture::Mixtral,
        num_kv_heads: Some(8),
        rope_theta: 1_000_000.0,
        rms_norm_eps: 1e-5,
        ..LLAMA
    },
    Family {
        models: "OLMoE",
        class: "OlmoeForCausalLM",
        model_type: "olmoe",
        architecture: Architecture::Olmoe,
        rms_norm_eps: 1e-5,
        ..LLAMA
    },
    Family {
        models: "Qwen2-MoE, Qwen1.5-MoE",
        class: "Qwen2MoeForCausalLM",
        model_type: "qwen2_moe",
        architecture: Architecture::Qwen2Moe,
        num_kv_heads: Some(16),
        window: Some(4096),
        ..LLAMA
    },
    Family {
        models: "Qwen3.5 (text)",
        class: "Qwen3_5ForCausalLM",
        model_type: "qwen3_5_text",
        architecture: Architecture::Qwen35,
        head_dim: Some(256),
        num_kv_heads: Some(4),
        ..LLAMA
    },
    Family {
        models: "Qwen3-Next",
        class: "Qwen3NextForCausalLM",
        model_type: "qwen3_next",
        architecture: Architecture::Qwen3Next,
        head_dim: Some(256),
        num_kv_heads: Some(2),
        ..LLAMA
    },
    Family {
        models: "Qwen3-MoE",
        class: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        architecture: Architecture::Qwen3Moe,
        num_kv_heads: Some(4),
        window: Some(4096),
        ..LLAMA
    },
];

/// The families as a table in Markdown, with their names in config.json and in GGUF files: that of
/// docs/models.md.
pub fn families_table() -> String {
    let mut table =
        "| models | `architectures` | `model_type` | GGUF |\n|---|---|---|---|\n".to_owned();
    for family in &FAMILIES {
        let Family { models, class, model_type, .. } = family;
        let gguf = gguf::family_name(family.architecture).map_or("-".into(), |x| format!("`{x}`"));
        table += &format!("| {models} | `{class}` | `{model_type}` | {gguf} |\n");
    }
    table
}

impl Family {
    /// Reads the family from `architectures`, or from `model_type` where that is absent. Where both
    /// are there, both must name a known family, and the same one unless both are Llama's or
    /// Mistral's.
    pub(super) fn of(fields: &Fields) -> Result<&'static Family, LoadError> {
        let model_type = fields.text("model_type")?;
        let of_type = FAMILIES.iter().find(|family| Some(family.model_type) == model_type);
        let unknown = || fields.refuse("model_type", &list(|family| family.model_type), REMEDY);
        // Transformers chooses the class by `architectures`, and its defaults by `model_type`: a
        // file in which one of the two is foreign describes another model.
        match (class(fields)?, of_type, model_type) {
            (Some(family), Some(other), _) if !family.mixes_with(other) => {
                let expected = format!("{} with {}", family.model_type, family.class);
                Err(fields.refuse("model_type", &expected, "correct the value"))
            }
            (Some(family), Some(_), _) | (Some(family), None, None) | (None, Some(family), _) => {
                Ok(family)
            }
            (_, None, _) => Err(unknown()),
        }
    }

    /// True if the models of both families differ in their windows alone.
    fn mixes_with(&self, other: &Family) -> bool {
        let has_plain_layers = |family: &Family| {
            use Architecture::{Llama, Ministral, Mistral};
            matches!(family.architecture, Llama | Mistral | Ministral)
        };
        self.architecture == other.architecture || has_plain_layers(self) && has_plain_layers(other)
    }
}

/// The settings of the text model of a Qwen3.5 with images, whose file has them within; those of
/// other models as they are.
pub(super) fn text_settings(fields: Fields<'_>) -> Result<Fields<'_>, LoadError> {
    match fields.text("model_type")? {
        Some("qwen3_5") => fields.merged("text_config", &["architectures"]),
        _ => Ok(fields),
    }
}

const REMEDY: &str = "choose a model of one of these families";

/// Reads the family that `architectures` names.
fn class(fields: &Fields) -> Result<Option<&'static Family>, LoadError> {
    let key = "architectures";
    let Some(list_of_one) = fields.get(key) else { return Ok(None) };
    let class = list_of_one.get(0).and_then(Value::as_str);
    if class == Some("Gemma3ForConditionalGeneration") {
        let remedy = "choose a checkpoint of Gemma 3 without images";
        return Err(fields.refuse(key, "Gemma3ForCausalLM, as images are not supported", remedy));
    }
    let family = FAMILIES.iter().find(|family| Some(family.class) == class);
    family.map(Some).ok_or_else(|| fields.refuse(key, &list(|family| family.class), REMEDY))
}

/// The names of all families.
fn list(name: impl Fn(&Family) -> &'static str) -> String {
    format!("one of {}", FAMILIES.iter().map(name).collect::<Vec<_>>().join(", "))
}
