//! List of a model's tensors, for reports.

use super::{Dtype, GatedMlp, Mlp, MlpBias, Tensor, Weights};

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name within a layer, or of the model.
    pub name: &'static str,
    /// Layer; `None` for a tensor of the model.
    pub layer: Option<usize>,
    /// Type in memory.
    pub dtype: Dtype,
    /// `[rows, cols]`, or the length of a vector.
    pub shape: Vec<usize>,
    /// Size in memory.
    pub bytes: usize,
}

impl TensorInfo {
    /// Number of elements.
    pub fn parameters(&self) -> usize {
        self.shape.iter().product()
    }

    fn matrix(name: &'static str, layer: Option<usize>, tensor: &Tensor) -> TensorInfo {
        let shape = vec![tensor.rows, tensor.cols];
        TensorInfo { name, layer, dtype: tensor.dtype, shape, bytes: tensor.bytes().len() }
    }

    fn vector(name: &'static str, layer: Option<usize>, vector: &[f32]) -> TensorInfo {
        let (shape, bytes) = (vec![vector.len()], size_of_val(vector));
        TensorInfo { name, layer, dtype: Dtype::F32, shape, bytes }
    }
}

/// The matrices of an MLP; those of all experts are one tensor.
fn of_mlp(mlp: &Mlp, layer: usize) -> Vec<TensorInfo> {
    let gated = |names: [&'static str; 3], mlp: &GatedMlp| -> Vec<TensorInfo> {
        let named = names.into_iter().zip(mlp.matrices());
        named.map(|(name, tensor)| TensorInfo::matrix(name, Some(layer), tensor)).collect()
    };
    let biases = |bias: &MlpBias| {
        let named = [("gate_bias", &bias.gate), ("up_bias", &bias.up), ("down_bias", &bias.down)];
        named.map(|(name, bias)| TensorInfo::vector(name, Some(layer), bias))
    };
    let mixture = match mlp {
        Mlp::Dense(dense) => return gated(["gate", "up", "down"], dense),
        Mlp::Mixture(mixture) => mixture,
    };
    let count = mixture.experts.len();
    let mut all = vec![TensorInfo::matrix("router", Some(layer), &mixture.router)];
    let router_bias = mixture.router_bias.as_ref();
    all.extend(router_bias.map(|bias| TensorInfo::vector("router_bias", Some(layer), bias)));
    if let Some(first) = mixture.experts.first() {
        let matrices = gated(["gate_experts", "up_experts", "down_experts"], first);
        let one_expert = matrices.into_iter().chain(first.bias.iter().flat_map(biases));
        all.extend(one_expert.map(|one| {
            let shape = [&[count], &one.shape[..]].concat();
            TensorInfo { shape, bytes: one.bytes * count, ..one }
        }));
    }
    let shared = ["gate_shared", "up_shared", "down_shared"];
    all.extend(mixture.shared.iter().flat_map(|mlp| gated(shared, mlp)));
    all
}

impl Weights {
    /// All tensors in the order of the forward pass. An output projection that is the embedding
    /// table is left out; vectors are f32 in memory, whatever the file has.
    pub fn inventory(&self) -> Vec<TensorInfo> {
        let mut all = vec![TensorInfo::matrix("embed", None, &self.embed)];
        for (index, layer) in self.layers.iter().enumerate() {
            let matrix = |name, tensor| TensorInfo::matrix(name, Some(index), tensor);
            let vector = |name, vector| TensorInfo::vector(name, Some(index), vector);
            all.extend([
                vector("attention_norm", &layer.attention_norm),
                matrix("q", &layer.q),
                matrix("k", &layer.k),
                matrix("v", &layer.v),
                matrix("o", &layer.o),
                vector("mlp_norm", &layer.mlp_norm),
            ]);
            if let Some(net) = &layer.delta_net {
                all.extend([
                    matrix("gate_delta", &net.gate),
                    matrix("rates", &net.rates),
                    vector("conv", &net.conv),
                    vector("decay", &net.decay),
                    vector("decay_bias", &net.decay_bias),
                    vector("norm_delta", &net.norm),
                ]);
            }
            all.extend(of_mlp(&layer.mlp, index));
            if let Some(bias) = &layer.qkv_bias {
                all.extend([
                    vector("q_bias", &bias.q),
                    vector("k_bias", &bias.k),
                    vector("v_bias", &bias.v),
                ]);
            }
            all.extend(layer.o_bias.as_ref().map(|bias| vector("o_bias", bias)));
            all.extend(layer.sinks.as_ref().map(|sinks| vector("sinks", sinks)));
            if let Some(norm) = &layer.qk_norm {
                all.extend([vector("q_norm", &norm.q), vector("k_norm", &norm.k)]);
            }
            if let Some(norms) = &layer.post_norms {
                all.extend([
                    vector("post_attention_norm", &norms.attention),
                    vector("post_mlp_norm", &norms.mlp),
                ]);
            }
        }
        all.push(TensorInfo::vector("norm", None, &self.norm));
        if !std::ptr::eq(self.embed.bytes(), self.lm_head.bytes()) {
            all.push(TensorInfo::matrix("lm_head", None, &self.lm_head));
        }
        all
    }
}
