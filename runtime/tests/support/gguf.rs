//! A writer of GGUF files, and golden models as such files.

use trail_runtime::model::{
    Architecture, Dtype, LayerWeights, Mixture, Mlp, MlpBias, Model, ModelConfig, RopeScaling,
    Tensor,
};

/// Alignment of the tensors' bytes.
const ALIGNMENT: usize = 32;

/// A GGUF file of version 3 in the making.
#[derive(Clone, Default)]
pub struct GgufWriter {
    pairs: Vec<(String, u32, Vec<u8>)>,
    tensors: Vec<StoredTensor>,
}

/// One tensor: its shape with the slowest dimension first, ggml's number of its type, its bytes.
#[derive(Clone)]
struct StoredTensor {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    bytes: Vec<u8>,
}

fn text_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl GgufWriter {
    /// Sets a value of ggml's type `kind`; an earlier one of the same key goes.
    fn set(&mut self, key: &str, kind: u32, bytes: Vec<u8>) -> &mut Self {
        self.remove(key);
        self.pairs.push((key.into(), kind, bytes));
        self
    }

    /// Removes a key, if it is there.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.pairs.retain(|pair| pair.0 != key);
        self
    }

    /// Sets a string.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.set(key, 8, text_bytes(value))
    }

    /// Sets a u32.
    pub fn int(&mut self, key: &str, value: u32) -> &mut Self {
        self.set(key, 4, value.to_le_bytes().to_vec())
    }

    /// Sets an f32.
    pub fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.set(key, 6, value.to_le_bytes().to_vec())
    }

    /// Sets an array of strings.
    pub fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        let items = values.iter().map(|value| text_bytes(value)).collect::<Vec<_>>();
        self.list(key, 8, &items)
    }

    /// Sets an array of i32.
    pub fn ints(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let items = values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>();
        self.list(key, 5, &items)
    }

    fn list(&mut self, key: &str, kind: u32, items: &[Vec<u8>]) -> &mut Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((items.len() as u64).to_le_bytes());
        bytes.extend(items.concat());
        self.set(key, 9, bytes)
    }

    /// Adds a tensor; its slowest dimension is first, `kind` is ggml's number of its type.
    pub fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> &mut Self {
        let (name, shape) = (name.to_string(), shape.to_vec());
        self.tensors.push(StoredTensor { name, shape, kind, bytes });
        self
    }

    /// Adds a tensor of f32.
    pub fn vector(&mut self, name: &str, values: &[f32]) -> &mut Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, &[values.len()], 0, bytes)
    }

    /// Two files with the metadata of this one; the first file has the first `count` tensors.
    pub fn split(&self, count: usize) -> [GgufWriter; 2] {
        let (first, second) = self.tensors.split_at(count);
        [(0, first), (1, second)].map(|(index, tensors)| {
            let mut part = GgufWriter { pairs: self.pairs.clone(), tensors: tensors.to_vec() };
            part.int("split.no", index).int("split.count", 2);
            part.int("split.tensors.count", self.tensors.len() as u32);
            part
        })
    }

    /// The bytes of the file, and the length of all that is before the tensors' bytes.
    pub fn file(&self) -> (Vec<u8>, usize) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.pairs {
            bytes.extend(text_bytes(key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            bytes.extend(text_bytes(&tensor.name));
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            for side in tensor.shape.iter().rev() {
                bytes.extend((*side as u64).to_le_bytes());
            }
            bytes.extend(tensor.kind.to_le_bytes());
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
        }
        let header = bytes.len();
        bytes.resize(header.next_multiple_of(ALIGNMENT), 0);
        bytes.extend(data);
        (bytes, header)
    }
}

/// A matrix as stored: ggml's number of its type, and its bytes.
pub type Store = fn(&Tensor) -> (u32, Vec<u8>);

/// Stores the bytes of a matrix as they are.
pub fn unchanged(tensor: &Tensor) -> (u32, Vec<u8>) {
    let kind = match tensor.dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Bf16 => 30,
        Dtype::MxFp4 => 39,
        other => panic!("{other}"),
    };
    (kind, tensor.bytes().to_vec())
}

/// The rows of a query or key projection with each head in the order of GGUF: row 2i + p of the
/// result is row i + p * head_dim / 2.
pub fn adjacent_rows(tensor: &Tensor, head_dim: usize) -> Vec<u8> {
    let half = head_dim / 2;
    let order = |head: usize| (0..half).flat_map(move |i| [head + i, head + i + half]);
    let rows = (0..tensor.rows).step_by(head_dim).flat_map(order);
    rows.flat_map(|row| tensor.row_bytes(row).to_vec()).collect()
}

/// `model` as a GGUF file with its matrices stored by `store`.
pub fn gguf_of(model: &Model, store: Store) -> GgufWriter {
    let mut file = GgufWriter::default();
    write_config(&mut file, model);
    let weights = &model.weights;
    let matrix = |file: &mut GgufWriter, name: &str, tensor: &Tensor| {
        let (kind, bytes) = store(tensor);
        file.tensor(name, &[tensor.rows, tensor.cols], kind, bytes);
    };
    matrix(&mut file, "token_embd.weight", &weights.embed);
    for (index, layer) in weights.layers.iter().enumerate() {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        if model.config.architecture.has_fused_projections() {
            matrix(&mut file, &name("attn_qkv"), &stacked(&[&layer.q, &layer.k, &layer.v]));
        } else {
            for (part, tensor) in [("attn_q", &layer.q), ("attn_k", &layer.k)] {
                matrix(&mut file, &name(part), &stored_rows(model, tensor));
            }
            matrix(&mut file, &name("attn_v"), &layer.v);
        }
        matrix(&mut file, &name("attn_output"), &layer.o);
        match &layer.mlp {
            Mlp::Dense(mlp) if model.config.architecture.has_fused_projections() => {
                matrix(&mut file, &name("ffn_up"), &stacked(&[&mlp.gate, &mlp.up]));
                matrix(&mut file, &name("ffn_down"), &mlp.down);
            }
            Mlp::Dense(mlp) => {
                for (part, tensor) in ["ffn_gate", "ffn_up", "ffn_down"].iter().zip(mlp.matrices())
                {
                    matrix(&mut file, &name(part), tensor);
                }
            }
            Mlp::Mixture(mixture) => write_mixture(&mut file, &name, mixture, store),
        }
        write_vectors(&mut file, index, layer);
    }
    file.vector("output_norm.weight", &weights.norm);
    if !model.config.tie_word_embeddings {
        matrix(&mut file, "output.weight", &weights.lm_head);
    }
    file
}

/// The rows of all `parts` as one matrix.
fn stacked(parts: &[&Tensor]) -> Tensor {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
    let rows = parts.iter().map(|part| part.rows).sum();
    let (dtype, cols) = (parts[0].dtype, parts[0].cols);
    Tensor::new(dtype, rows, cols, std::sync::Arc::new(bytes), 0).expect("as many bytes")
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Writes experts: one tensor has a projection of all experts.
fn write_mixture(
    file: &mut GgufWriter,
    name: &dyn Fn(&str) -> String,
    mixture: &Mixture,
    store: Store,
) {
    let (experts, hidden) = (mixture.experts.len(), mixture.router.cols);
    let router = mixture.router.to_f32();
    let (router, shared_gate) = router.split_at(experts * hidden);
    file.tensor(&name("ffn_gate_inp"), &[experts, hidden], 0, to_bytes(router));
    for (index, part) in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].iter().enumerate() {
        let all: Vec<_> = mixture.experts.iter().map(|mlp| store(mlp.matrices()[index])).collect();
        let tensor = mixture.experts[0].matrices()[index];
        let bytes = all.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        file.tensor(&name(part), &[experts, tensor.rows, tensor.cols], all[0].0, bytes);
        let biases: Vec<&MlpBias> =
            mixture.experts.iter().filter_map(|mlp| mlp.bias.as_ref()).collect();
        if !biases.is_empty() {
            let of = |bias: &MlpBias| [&bias.gate, &bias.up, &bias.down][index].clone();
            let values: Vec<f32> = biases.into_iter().flat_map(of).collect();
            let name = name(part).replace("weight", "bias");
            file.tensor(&name, &[experts, tensor.rows], 0, to_bytes(&values));
        }
    }
    if let Some(bias) = &mixture.router_bias {
        file.vector(&name("ffn_gate_inp").replace("weight", "bias"), bias);
    }
    if let Some(shared) = &mixture.shared {
        file.vector(&name("ffn_gate_inp_shexp"), shared_gate);
        let parts = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        for (part, tensor) in parts.iter().zip(shared.matrices()) {
            let (kind, bytes) = store(tensor);
            file.tensor(&name(part), &[tensor.rows, tensor.cols], kind, bytes);
        }
    }
}

/// A query or key projection with its rows in the order of the family's files.
fn stored_rows(model: &Model, tensor: &Tensor) -> Tensor {
    if !matches!(family(model), "llama" | "granite") {
        return tensor.clone();
    }
    let rows = std::sync::Arc::new(adjacent_rows(tensor, model.config.head_dim));
    Tensor::new(tensor.dtype, tensor.rows, tensor.cols, rows, 0).expect("as many bytes")
}

fn write_vectors(file: &mut GgufWriter, index: usize, layer: &LayerWeights) {
    let mut vector = |part: &str, values: &[f32]| {
        file.vector(&format!("blk.{index}.{part}"), values);
    };
    vector("attn_norm.weight", &layer.attention_norm);
    let is_gpt_oss = layer.sinks.is_some();
    let norm = if is_gpt_oss { "post_attention_norm.weight" } else { "ffn_norm.weight" };
    vector(norm, &layer.mlp_norm);
    if let (Some(bias), Some(sinks)) = (&layer.o_bias, &layer.sinks) {
        vector("attn_output.bias", bias);
        vector("attn_sinks.weight", sinks);
    }
    if let Some(bias) = &layer.qkv_bias {
        vector("attn_q.bias", &bias.q);
        vector("attn_k.bias", &bias.k);
        vector("attn_v.bias", &bias.v);
    }
    if let Some(norm) = &layer.qk_norm {
        vector("attn_q_norm.weight", &norm.q);
        vector("attn_k_norm.weight", &norm.k);
    }
    if let Some(norms) = &layer.post_norms {
        vector("post_attention_norm.weight", &norms.attention);
        vector("post_ffw_norm.weight", &norms.mlp);
    }
}

/// Name of the model's family in GGUF files.
fn family(model: &Model) -> &'static str {
    match model.config.architecture {
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
        Architecture::Gemma3 => "gemma3",
        Architecture::GptOss => "gpt-oss",
        Architecture::Phi3 => "phi3",
        Architecture::Granite => "granite",
        Architecture::Olmoe => "olmoe",
        Architecture::Qwen2Moe => "qwen2moe",
        Architecture::Qwen3Moe => "qwen3moe",
        _ => "llama",
    }
}

fn write_rope_scaling(file: &mut GgufWriter, config: &ModelConfig, key: &dyn Fn(&str) -> String) {
    match config.rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => {
            file.text(&key("rope.scaling.type"), "linear");
            file.float(&key("rope.scaling.factor"), factor as f32);
        }
        RopeScaling::Yarn(yarn) => {
            file.text(&key("rope.scaling.type"), "yarn");
            file.float(&key("rope.scaling.factor"), yarn.factor as f32);
            let context = yarn.original_context as u32;
            file.int(&key("rope.scaling.original_context_length"), context);
        }
        RopeScaling::LongRope { attention_factor } => {
            file.float(&key("rope.scaling.attn_factor"), attention_factor as f32);
            let factors = config.long_rope.as_ref().expect("factors");
            let context = factors.original_context as u32;
            file.int(&key("rope.scaling.original_context_length"), context);
            file.vector("rope_factors_long.weight", &factors.long);
            file.vector("rope_factors_short.weight", &factors.short);
        }
        RopeScaling::Llama3 { .. } => {
            let mut plain = config.clone();
            plain.rope.scaling = RopeScaling::None;
            let pairs = plain.inverse_frequencies().into_iter().zip(config.inverse_frequencies());
            let factors: Vec<f32> = pairs.map(|(plain, scaled)| (plain / scaled) as f32).collect();
            file.vector("rope_freqs.weight", &factors);
        }
    }
}

fn write_config(file: &mut GgufWriter, model: &Model) {
    let config = &model.config;
    let family = family(model);
    let key = |name: &str| format!("{family}.{name}");
    file.text("general.architecture", family);
    let sizes = [
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_layers),
        ("context_length", config.max_context),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("vocab_size", config.vocab_size),
    ];
    for (name, size) in sizes {
        file.int(&key(name), size as u32);
    }
    if let Some(mixture) = &config.mixture {
        file.int(&key("expert_count"), mixture.num_experts as u32);
        file.int(&key("expert_used_count"), mixture.experts_per_token as u32);
        let name = match family {
            "llama" | "olmoe" => "feed_forward_length",
            _ => "expert_feed_forward_length",
        };
        file.int(&key(name), mixture.expert_size as u32);
        if let Some(size) = mixture.shared_size {
            file.int(&key("expert_shared_feed_forward_length"), size as u32);
        }
    }
    file.float(&key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    file.int(&key("rope.dimension_count"), config.rotary_dim() as u32);
    if config.architecture == Architecture::Granite {
        file.float(&key("attention.scale"), config.attention_scale());
        file.float(&key("residual_scale"), config.residual_multiplier);
        file.float(&key("embedding_scale"), config.embedding_scale);
        file.float(&key("logit_scale"), config.logits_scaling);
    }
    file.float(&key("rope.freq_base"), config.rope.theta as f32);
    if let Some(window) = config.windows[0] {
        file.int(&key("attention.sliding_window"), window as u32);
    }
    if let Some(global) = config.windows.iter().position(Option::is_none) {
        file.int(&key("attention.sliding_window_pattern"), global as u32 + 1);
    }
    write_rope_scaling(file, config, &key);
}
