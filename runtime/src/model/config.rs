//! Model configuration: the shapes and constants of a model.

use trail_cpu_kernels::{Activation, Dtype};

use super::{DeltaNetConfig, LongRope, MixtureConfig, RopeConfig};

/// Families of models: decoders whose blocks differ in norms, biases, activation and RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2, 3, 3.1, 3.2, and Vicuna, which has Llama 2's architecture.
    Llama,
    /// Mistral: Llama with an optional sliding window.
    Mistral,
    /// Ministral: Mistral with a window per layer.
    Ministral,
    /// Qwen2 and 2.5: Llama with biases on q, k and v.
    Qwen2,
    /// Qwen3: Llama with norms on q and k.
    Qwen3,
    /// SmolLM3: Llama with layers without RoPE.
    SmolLm3,
    /// gpt-oss: experts with biases and a limited SwiGLU, attention sinks, biases of all
    /// projections of attention, a window in every second layer, YaRN.
    GptOss,
    /// Gemma 3, text only: scaled embedding, GeGLU, norms on q and k and after each block, local
    /// and global layers with two RoPE bases.
    Gemma3,
    /// Mixtral: Mistral with experts in place of the MLP.
    Mixtral,
    /// OLMoE: Llama with experts, and norms over all of q and of k.
    Olmoe,
    /// Qwen2-MoE, Qwen1.5-MoE: Qwen2 with experts, and one more that all tokens share.
    Qwen2Moe,
    /// Qwen3-MoE: Qwen3 with experts.
    Qwen3Moe,
    /// Phi-3, Phi-3.5 mini, Phi-4, Phi-4 mini: Mistral with q, k and v in one matrix, as gate and
    /// up, and optionally partial RoPE and LongRoPE.
    Phi3,
    /// Granite 3: Llama with factors of the embedding, the scores, what blocks add, and the logits.
    Granite,
    /// Qwen3.5, text only: gated delta nets in most layers, a gate of attention's output in the
    /// others, partial RoPE, norms on q and k.
    Qwen35,
    /// Qwen3-Next: Qwen3.5's layers with experts, and one more that all tokens share.
    Qwen3Next,
}

impl Architecture {
    /// True if the query, key and value projections have biases.
    pub fn has_qkv_bias(self) -> bool {
        matches!(self, Architecture::Qwen2 | Architecture::Qwen2Moe | Architecture::GptOss)
    }

    /// True if the output projection of attention, the router and the experts have biases, and
    /// heads have attention sinks.
    pub fn has_sinks(self) -> bool {
        self == Architecture::GptOss
    }

    /// True if queries and keys are normalised before RoPE, each head alone or all together.
    pub fn has_qk_norm(self) -> bool {
        use Architecture::{Gemma3, Olmoe, Qwen3, Qwen3Moe, Qwen3Next, Qwen35};
        matches!(self, Qwen3 | Qwen3Moe | Gemma3 | Olmoe | Qwen35 | Qwen3Next)
    }

    /// True if one norm has all query heads of a row, and one all key heads.
    pub fn has_wide_qk_norm(self) -> bool {
        self == Architecture::Olmoe
    }

    /// True if layers have experts in place of the MLP.
    pub fn has_experts(self) -> bool {
        use Architecture::{GptOss, Mixtral, Olmoe, Qwen2Moe, Qwen3Moe, Qwen3Next};
        matches!(self, GptOss | Mixtral | Olmoe | Qwen2Moe | Qwen3Moe | Qwen3Next)
    }

    /// True if one of the experts computes every row.
    pub fn has_shared_expert(self) -> bool {
        matches!(self, Architecture::Qwen2Moe | Architecture::Qwen3Next)
    }

    /// True if some layers have gated delta nets, and the others a gate of attention's output,
    /// whose rows are between those of q: `[num_heads][query | gate][head_dim]`.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Architecture::Qwen35 | Architecture::Qwen3Next)
    }

    /// True if a file has q, k and v in one matrix, and gate and up in another.
    pub fn has_fused_projections(self) -> bool {
        self == Architecture::Phi3
    }

    /// True if RoPE may rotate a part of each head's dimensions.
    pub fn has_partial_rope(self) -> bool {
        self.is_hybrid() || self == Architecture::Phi3
    }

    /// True if the outputs of attention and MLP are normalised before they are added.
    pub fn has_post_norms(self) -> bool {
        self == Architecture::Gemma3
    }
}

/// Pairing of a head's dimensions in RoPE, by the order of the rows of the stored q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// Dimension i with i + head_dim / 2: Hugging Face's order.
    Halves,
    /// Dimension 2i with 2i + 1: the order of Meta's releases and of GGUF files of Llama.
    Adjacent,
}

/// Rotary position embedding of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRope {
    /// By [`ModelConfig::rope`].
    Global,
    /// By [`ModelConfig::local_rope`].
    Local,
    /// None: the layer does not see positions.
    Absent,
}

/// Shapes and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Residual stream width d.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer; of a mixture's experts see `mixture`.
    pub intermediate_size: usize,
    /// The experts in place of the MLP, if the family has them.
    pub mixture: Option<MixtureConfig>,
    /// The gated delta nets in place of attention, if the family has them.
    pub delta_net: Option<DeltaNetConfig>,
    /// Number of transformer layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key/value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head; even. `num_heads * head_dim` need not equal `hidden_size`.
    pub head_dim: usize,
    /// Dimensions of a head that RoPE rotates, the first ones, even; `None`: all.
    pub rotary_dim: Option<usize>,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Maximum context length, tokens.
    pub max_context: usize,
    /// RMSNorm's epsilon.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Divisors of the inverse frequencies of `rope`, if the model's file has some:
    /// `[rotary_dim / 2]`.
    pub rope_factors: Option<Vec<f32>>,
    /// The same of LongRoPE, if `rope` has that scaling.
    pub long_rope: Option<LongRope>,
    /// Rotary position embedding of layers with a sliding window, if it is another one.
    pub local_rope: Option<RopeConfig>,
    /// Layers without rotary position embedding.
    pub layers_without_rope: Vec<usize>,
    /// Order of the stored rows of q and k.
    pub rope_pairing: RopePairing,
    /// Factor of the scores; `None` is `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f32>,
    /// Factor of the token embeddings: 1 in most families.
    pub embedding_scale: f32,
    /// Factor of what attention and MLP add to the residual stream: 1 in most families.
    pub residual_multiplier: f32,
    /// Divisor of the logits: 1 in most families.
    pub logits_scaling: f32,
    /// Activation function of the MLP's gate.
    pub activation: Activation,
    /// Sliding window of each layer in tokens (a token attends to itself and `window - 1` before
    /// it); `None` attends to all. `[num_layers]`.
    pub windows: Vec<Option<usize>>,
    /// True if the output projection is the embedding table.
    pub tie_word_embeddings: bool,
    /// Beginning-of-sequence token, if the config names one.
    pub bos_token: Option<u32>,
    /// End-of-sequence tokens.
    pub eos_tokens: Vec<u32>,
}

impl ModelConfig {
    /// Rows of the query projection.
    pub fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Lengths of the norms of q and k.
    pub fn qk_norm_sizes(&self) -> (usize, usize) {
        match self.architecture.has_wide_qk_norm() {
            true => (self.q_size(), self.kv_size()),
            false => (self.head_dim, self.head_dim),
        }
    }

    /// Rows of the key (and of the value) projection.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Dimensions of a head that RoPE rotates.
    pub fn rotary_dim(&self) -> usize {
        self.rotary_dim.unwrap_or(self.head_dim)
    }

    /// Bytes of one token's keys and values in all layers, stored as `dtype`.
    pub fn kv_token_bytes(&self, dtype: Dtype) -> usize {
        dtype.bytes_of(2 * self.kv_layers() * self.kv_size())
    }

    /// Bytes of keys and values, stored as `dtype`, that all layers read for a row that attends to
    /// `context` tokens: a layer with a sliding window reads no more than its window.
    pub fn kv_read_bytes(&self, context: usize, dtype: Dtype) -> usize {
        let layers = self.windows.iter().enumerate();
        let attend = layers.filter(|(layer, _)| self.layer_delta_net(*layer).is_none());
        let tokens: usize =
            attend.map(|(_, window)| window.map_or(context, |w| w.min(context))).sum();
        dtype.bytes_of(2 * tokens * self.kv_size())
    }

    /// The mixture that takes the place of the MLP of `layer`, if one does.
    pub fn layer_mixture(&self, layer: usize) -> Option<&MixtureConfig> {
        self.mixture.as_ref().filter(|mixture| !mixture.dense_layers.contains(&layer))
    }

    /// Inner activations of each kind of MLP that the layers have: rows for each row of a batch,
    /// and their width.
    pub fn inner_shapes(&self) -> Vec<(usize, usize)> {
        let mut shapes = Vec::new();
        if (0..self.num_layers).any(|layer| self.layer_mixture(layer).is_none()) {
            shapes.push((1, self.intermediate_size));
        }
        if let Some(mixture) = &self.mixture {
            shapes.push((mixture.experts_per_token, mixture.expert_size));
            shapes.extend(mixture.shared_size.map(|size| (1, size)));
        }
        shapes
    }

    /// Rows of the MLPs' input for each row of a batch: the row, and in a mixture a copy for each
    /// of its experts, so that the rows of an expert can be consecutive.
    pub fn mlp_input_rows(&self) -> usize {
        1 + self.mixture.as_ref().map_or(0, |mixture| mixture.experts_per_token)
    }

    /// Factor of the scores.
    pub fn attention_scale(&self) -> f32 {
        self.attention_scale.unwrap_or(1.0 / (self.head_dim as f32).sqrt())
    }

    /// RoPE of `layer`.
    pub fn layer_rope(&self, layer: usize) -> LayerRope {
        if self.layers_without_rope.contains(&layer) {
            LayerRope::Absent
        } else if self.local_rope.is_some() && self.windows[layer].is_some() {
            LayerRope::Local
        } else {
            LayerRope::Global
        }
    }

    /// Rotary inverse frequencies of the global layers, scaled: `[rotary_dim / 2]`, in f64 radians
    /// per token.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        let mut frequencies = self.rope.inverse_frequencies(self.rotary_dim());
        let by_context = self.long_rope.as_ref().map(|rope| {
            match self.max_context as f64 > rope.original_context {
                true => &rope.long,
                false => &rope.short,
            }
        });
        let factors = by_context.or(self.rope_factors.as_ref()).into_iter().flatten();
        for (frequency, factor) in frequencies.iter_mut().zip(factors) {
            *frequency /= f64::from(*factor);
        }
        frequencies
    }

    /// The same of the local layers, if they have another RoPE.
    pub fn local_inverse_frequencies(&self) -> Option<Vec<f64>> {
        self.local_rope.map(|rope| rope.inverse_frequencies(self.rotary_dim()))
    }
}
