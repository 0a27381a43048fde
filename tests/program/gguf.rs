//! A GGUF file of the demo model, as llama.cpp's converter writes it.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// Alignment of tensor data, bytes.
const ALIGNMENT: usize = 32;
/// Type of bf16 tensors.
const BF16: u32 = 30;

/// Metadata as bytes: keys with typed values.
#[derive(Default)]
struct Metadata {
    bytes: Vec<u8>,
    count: u64,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Metadata {
    fn add(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.bytes.extend([&text(key)[..], &kind.to_le_bytes(), value].concat());
        self.count += 1;
    }

    fn number(&mut self, key: &str, value: &Value) {
        let value = value.as_u64().expect("a number") as u32;
        self.add(key, 4, &value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: &Value) {
        self.add(key, 6, &(value.as_f64().expect("a number") as f32).to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.add(key, 8, &text(value));
    }

    fn list(&mut self, key: &str, kind: u32, items: &[Vec<u8>]) {
        let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
        self.add(key, 9, &[head, items.concat()].concat());
    }
}

/// The bytes of the demo model in `folder` as one GGUF file.
pub(crate) fn demo(folder: &Path) -> Vec<u8> {
    let json = |name: &str| -> Value {
        let bytes = fs::read(folder.join(name)).expect("a file");
        serde_json::from_slice(&bytes).expect("JSON")
    };
    let config = json("config.json");
    let mut metadata = shapes(&config);
    tokenizer(&mut metadata, &json("tokenizer.json"), &json("tokenizer_config.json"));
    let weights = fs::read(folder.join("model.safetensors")).expect("the weights");
    let head = u64::from_le_bytes(weights[..8].try_into().expect("8 bytes")) as usize;
    let tensors: Value = serde_json::from_slice(&weights[8..8 + head]).expect("a header");
    let (mut infos, mut data, mut count) = (Vec::new(), Vec::new(), 0_u64);
    for (name, info) in tensors.as_object().expect("tensors") {
        let Some(shape) = info.get("shape") else { continue };
        let shape: Vec<u64> = serde_json::from_value(shape.clone()).expect("a shape");
        let range = info["data_offsets"].as_array().expect("offsets");
        let at = |index: usize| 8 + head + range[index].as_u64().expect("an offset") as usize;
        let rows = &weights[at(0)..at(1)];
        infos.extend(text(&stored_name(name)));
        infos.extend((shape.len() as u32).to_le_bytes());
        infos.extend(shape.iter().rev().flat_map(|size| size.to_le_bytes()));
        infos.extend(BF16.to_le_bytes());
        infos.extend((data.len() as u64).to_le_bytes());
        match name.contains("q_proj") || name.contains("k_proj") {
            true => data.extend(adjacent(rows, 2 * shape[1] as usize, head_dim(&config))),
            false => data.extend(rows),
        }
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        count += 1;
    }
    let begin = [&b"GGUF"[..], &3_u32.to_le_bytes(), &count.to_le_bytes()].concat();
    let mut file = [&begin[..], &metadata.count.to_le_bytes(), &metadata.bytes, &infos].concat();
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    file.extend(data);
    file
}

fn head_dim(config: &Value) -> usize {
    config["head_dim"].as_u64().expect("a number") as usize
}

fn shapes(config: &Value) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.text("general.architecture", "llama");
    for (key, of) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("rope.dimension_count", "head_dim"),
        ("vocab_size", "vocab_size"),
    ] {
        metadata.number(&format!("llama.{key}"), &config[of]);
    }
    metadata.float("llama.attention.layer_norm_rms_epsilon", &config["rms_norm_eps"]);
    metadata.float("llama.rope.freq_base", &config["rope_theta"]);
    metadata.number("tokenizer.ggml.bos_token_id", &config["bos_token_id"]);
    metadata.number("tokenizer.ggml.eos_token_id", &config["eos_token_id"]);
    metadata
}

fn tokenizer(metadata: &mut Metadata, tokenizer: &Value, config: &Value) {
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize] = token.clone();
    }
    let special = tokenizer["added_tokens"].as_array().expect("added tokens");
    let is_special = |token: &String| special.iter().any(|added| added["content"] == **token);
    let kind = |token: &String| if is_special(token) { 3_i32 } else { 1 };
    let kinds: Vec<Vec<u8>> = tokens.iter().map(|token| kind(token).to_le_bytes().into()).collect();
    let tokens: Vec<Vec<u8>> = tokens.iter().map(|token| text(token)).collect();
    let merges = tokenizer["model"]["merges"].as_array().expect("merges");
    let part = |merge: &Value, index: usize| merge[index].as_str().expect("text").to_owned();
    let merges = merges.iter().map(|merge| text(&format!("{} {}", part(merge, 0), part(merge, 1))));
    let merges: Vec<Vec<u8>> = merges.collect();
    metadata.text("tokenizer.ggml.model", "gpt2");
    metadata.text("tokenizer.ggml.pre", "gpt-2");
    metadata.list("tokenizer.ggml.tokens", 8, &tokens);
    metadata.list("tokenizer.ggml.token_type", 5, &kinds);
    metadata.list("tokenizer.ggml.merges", 8, &merges);
    let template = config["chat_template"].as_str().expect("a template");
    metadata.text("tokenizer.chat_template", template);
}

/// llama.cpp's name of a tensor.
fn stored_name(name: &str) -> String {
    let parts = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    parts.iter().fold(name.to_owned(), |name, (part, stored)| name.replace(part, stored))
}

/// Rows of `row_bytes` bytes of all heads, with the pairs of RoPE side by side: row i and row i +
/// half of a head become rows 2i and 2i + 1.
fn adjacent(bytes: &[u8], row_bytes: usize, head_dim: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = bytes.chunks_exact(row_bytes).collect();
    let (heads, half) = (rows.chunks_exact(head_dim), head_dim / 2);
    let pairs = heads.flat_map(|head| (0..half).flat_map(|i| [head[i], head[i + half]]));
    pairs.flatten().copied().collect()
}
