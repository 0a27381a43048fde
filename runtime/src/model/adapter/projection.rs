//! The projections of a layer that an adapter may change.

use crate::model::{ModelConfig, RopePairing};

/// A projection of a layer; the value is its place in tables by projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gate of the MLP.
    Gate,
    /// Up projection of the MLP.
    Up,
    /// Down projection of the MLP.
    Down,
}

impl Projection {
    /// All, by their values.
    pub const ALL: [Projection; 7] = {
        use Projection::{Down, Gate, K, O, Q, Up, V};
        [Q, K, V, O, Gate, Up, Down]
    };

    /// The module within its layer.
    pub fn module(self) -> &'static str {
        match self {
            Projection::Q => "self_attn.q_proj",
            Projection::K => "self_attn.k_proj",
            Projection::V => "self_attn.v_proj",
            Projection::O => "self_attn.o_proj",
            Projection::Gate => "mlp.gate_proj",
            Projection::Up => "mlp.up_proj",
            Projection::Down => "mlp.down_proj",
        }
    }

    /// The projection whose module ends in `name`, `q_proj` for instance.
    pub(super) fn named(name: &str) -> Option<Projection> {
        let last = |module: &'static str| module.rsplit_once('.').map(|(_, last)| last);
        Projection::ALL.into_iter().find(|projection| last(projection.module()) == Some(name))
    }

    /// Outputs and inputs in models of `config`.
    pub fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        match self {
            Projection::Q => (config.q_size(), hidden),
            Projection::K | Projection::V => (config.kv_size(), hidden),
            Projection::O => (hidden, config.q_size()),
            Projection::Gate | Projection::Up => (inner, hidden),
            Projection::Down => (hidden, inner),
        }
    }

    /// True if layer `layer` of models of `config` has it: experts have their own.
    pub(super) fn is_in(self, layer: usize, config: &ModelConfig) -> bool {
        let of_mlp = matches!(self, Projection::Gate | Projection::Up | Projection::Down);
        !of_mlp || config.layer_mixture(layer).is_none()
    }

    /// The output in Hugging Face's order that is output `index` of a model of `config`: GGUF files
    /// of Llama have the pairs of RoPE side by side.
    pub(super) fn original_output(self, index: usize, config: &ModelConfig) -> usize {
        let is_rotated = matches!(self, Projection::Q | Projection::K);
        if !is_rotated || config.rope_pairing == RopePairing::Halves {
            return index;
        }
        let (head, within) = (index / config.head_dim, index % config.head_dim);
        head * config.head_dim + within / 2 + within % 2 * (config.head_dim / 2)
    }
}
