//! Gated delta nets, which take the place of attention in most layers of a hybrid (Yang et al.
//! 2024): shapes and weights.
//!
//! Of each token a layer computes a query, a key and values, each through a short convolution over
//! the last tokens, and updates a matrix for each value head: it decays, and its value for the key
//! moves towards the token's. The output is its value for the query. So a request has no keys and
//! values in such a layer but a recurrent state of fixed size.

use super::{ModelConfig, Tensor};

/// The gated delta nets of a hybrid.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNetConfig {
    /// Layers with a gated delta net in place of attention, first to last.
    pub layers: Vec<usize>,
    /// Number of key heads, which is that of query heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`: consecutive ones share a key head.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that an output of the convolution reads: its own and those before.
    pub taps: usize,
}

impl DeltaNetConfig {
    /// Rows of the query (and of the key) projection.
    pub fn key_size(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Rows of the value projection.
    pub fn value_size(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: those of all queries, keys, and values.
    pub fn channels(&self) -> usize {
        2 * self.key_size() + self.value_size()
    }

    /// Value heads that share a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Channels of one key head: its query, its key, and the values that share it.
    pub fn head_channels(&self) -> usize {
        2 * self.key_dim + self.group() * self.value_dim
    }

    /// Values of one key head's state in a layer: the inputs of the convolution of the last
    /// `taps - 1` tokens `[taps - 1][head_channels]`, the matrices `[group][key_dim][value_dim]`.
    pub fn head_state_len(&self) -> usize {
        (self.taps - 1) * self.head_channels() + self.group() * self.key_dim * self.value_dim
    }

    /// Values of a request's recurrent state: `[layers][key_heads][head_state_len]`, in f32.
    pub fn state_len(&self) -> usize {
        self.layers.len() * self.key_heads * self.head_state_len()
    }

    /// Place of layer `layer` among those with a gated delta net; `None` for one with attention.
    pub fn place(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|&other| other == layer)
    }
}

impl ModelConfig {
    /// The gated delta nets, if `layer` has one in place of attention.
    pub fn layer_delta_net(&self, layer: usize) -> Option<&DeltaNetConfig> {
        self.delta_net.as_ref().filter(|net| net.place(layer).is_some())
    }

    /// Widest output of attention or of a gated delta net.
    pub fn attended_size(&self) -> usize {
        self.q_size().max(self.delta_net.as_ref().map_or(0, DeltaNetConfig::value_size))
    }

    /// Number of layers with attention, which have keys and values.
    pub fn kv_layers(&self) -> usize {
        self.num_layers - self.delta_net.as_ref().map_or(0, |net| net.layers.len())
    }

    /// Place of `layer`, which has attention, among the layers with keys and values.
    pub fn kv_layer(&self, layer: usize) -> usize {
        let nets = self.delta_net.iter().flat_map(|net| &net.layers);
        layer - nets.filter(|&&other| other < layer).count()
    }

    /// Rows and columns of the q, k, v and o projections of `layer`.
    pub fn projections(&self, layer: usize) -> [(usize, usize); 4] {
        let hidden = self.hidden_size;
        let gates = if self.architecture.is_hybrid() { 2 } else { 1 };
        let (q, k, v, o) = match self.layer_delta_net(layer) {
            None => (gates * self.q_size(), self.kv_size(), self.kv_size(), self.q_size()),
            Some(net) => (net.key_size(), net.key_size(), net.value_size(), net.value_size()),
        };
        [(q, hidden), (k, hidden), (v, hidden), (hidden, o)]
    }
}

/// Weights of a gated delta net, beside the projections of its layer: q `[key_size, hidden]`, k
/// `[key_size, hidden]`, v `[value_size, hidden]`, o `[hidden, value_size]`.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// Gate of the outputs (z in transformers): `[value_size, hidden]`.
    pub gate: Tensor,
    /// The weight of a token's update of each value head, before its sigmoid, then the decay,
    /// before its softplus (b and a in transformers), in f32: `[2 * value_heads, hidden]`.
    pub rates: Tensor,
    /// Convolution of each channel, of the oldest token first: `[taps][channels]`.
    pub conv: Vec<f32>,
    /// Factor of the decay, negative: `[value_heads]`.
    pub decay: Vec<f32>,
    /// Bias of the decay: `[value_heads]`.
    pub decay_bias: Vec<f32>,
    /// RMSNorm of each value head's output: `[value_dim]`.
    pub norm: Vec<f32>,
}
