//! The shape of an encoder, from `config.json`.

use serde::Deserialize;

/// Names of the tensors of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// BERT, MiniLM, BGE.
    Bert,
    /// DistilBERT: no token types.
    DistilBert,
}

/// The function between the two products of a layer's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x times the normal distribution's cumulative probability of x.
    Gelu,
    /// Its approximation by tanh.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

/// Sizes of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Names of the tensors.
    pub family: Family,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Elements of a row.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of attention, a divisor of the width.
    pub heads: usize,
    /// Elements of the MLP's hidden row.
    pub mlp: usize,
    /// Most tokens of a text.
    pub positions: usize,
    /// Added to the variance in a layer norm.
    pub epsilon: f64,
    /// Activation of the MLP.
    pub activation: Activation,
}

/// `config.json`, with BERT's names and DistilBERT's.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(alias = "dim")]
    hidden_size: usize,
    #[serde(alias = "n_layers")]
    num_hidden_layers: usize,
    #[serde(alias = "n_heads")]
    num_attention_heads: usize,
    #[serde(alias = "hidden_dim")]
    intermediate_size: usize,
    #[serde(alias = "activation")]
    hidden_act: String,
    layer_norm_eps: Option<f64>,
    position_embedding_type: Option<String>,
}

/// Largest sizes that are accepted: more than any encoder has.
const MAX_LAYERS: usize = 256;
const MAX_SIZE: usize = 1 << 20;

/// Most elements of a matrix that a pass over the longest text computes, 256 MiB of f32: with 8,192
/// positions those of a head's scores, or rows of 8,192 elements.
const MAX_ELEMENTS: usize = 1 << 26;

impl Config {
    /// Parses `json`; the error says what is missing or not supported.
    pub fn parse(json: &[u8]) -> Result<Config, String> {
        let raw: Raw = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let family = match raw.model_type.as_deref() {
            Some("bert") => Family::Bert,
            Some("distilbert") => Family::DistilBert,
            other => {
                let other = other.unwrap_or("none");
                return Err(format!(
                    "model_type {other:?} is not supported: give bert or distilbert"
                ));
            }
        };
        if let Some(other) = raw.position_embedding_type.filter(|name| name != "absolute") {
            return Err(format!("position_embedding_type {other:?} is not supported"));
        }
        let activation = match &*raw.hidden_act {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            other => return Err(format!("activation {other:?} is not supported")),
        };
        let config = Config {
            family,
            vocab: raw.vocab_size,
            width: raw.hidden_size,
            layers: raw.num_hidden_layers,
            heads: raw.num_attention_heads,
            mlp: raw.intermediate_size,
            positions: raw.max_position_embeddings,
            epsilon: raw.layer_norm_eps.unwrap_or(1e-12),
            activation,
        };
        let sizes = [config.vocab, config.width, config.heads, config.mlp, config.positions];
        let columns = config.width.max(config.mlp).max(config.positions);
        let is_sound = sizes.iter().all(|size| (1..=MAX_SIZE).contains(size))
            && config.positions * columns <= MAX_ELEMENTS
            && (1..=MAX_LAYERS).contains(&config.layers)
            && config.width.is_multiple_of(config.heads)
            && (0.0..1.0).contains(&config.epsilon);
        is_sound.then_some(config).ok_or_else(|| "sizes that no encoder has".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERT: &str = r#"{"model_type": "bert", "vocab_size": 9, "max_position_embeddings": 8,
        "hidden_size": 6, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 5,
        "hidden_act": "gelu"}"#;

    #[test]
    fn both_spellings_are_read() {
        let bert = Config::parse(BERT.as_bytes()).expect("BERT");
        assert_eq!((bert.width, bert.heads, bert.epsilon), (6, 3, 1e-12));
        let distil = r#"{"model_type": "distilbert", "vocab_size": 9, "dim": 6, "n_layers": 2,
            "max_position_embeddings": 8, "n_heads": 3, "hidden_dim": 5, "activation": "gelu"}"#;
        let distil = Config::parse(distil.as_bytes()).expect("DistilBERT");
        assert_eq!(distil, Config { family: Family::DistilBert, ..bert });
    }

    #[test]
    fn other_encoders_are_refused_by_name() {
        for (from, to, why) in [
            ("\"bert\"", "\"roberta\"", "roberta"),
            ("\"gelu\"", "\"silu\"", "silu"),
            ("\"num_attention_heads\": 3", "\"num_attention_heads\": 4", "sizes"),
            ("\"num_attention_heads\": 3", "\"num_attention_heads\": 0", "sizes"),
            ("\"vocab_size\": 9", "\"vocab_size\": 0", "sizes"),
            ("embeddings\": 8", "embeddings\": 8193", "sizes"),
            ("intermediate_size\": 5", "intermediate_size\": 8388609", "sizes"),
            ("\"vocab_size\"", "\"vocab\"", "vocab_size"),
            ("\"model_type\"", "\"type\"", "none"),
        ] {
            let error = Config::parse(BERT.replace(from, to).as_bytes()).expect_err("refused");
            assert!(error.contains(why) && error.lines().count() == 1, "{error}");
        }
        assert!(Config::parse(b"[").is_err());
    }
}
