//! A model whose answers are known: each token has one successor.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// Entries of the vocabulary, and width of the model: the state is a token's unit vector.
const SIZE: usize = 512;
/// Width of keys and values.
const HEAD: usize = 64;
const EOS: usize = 256;

/// Writes a model into a new folder of this `name`, with the chat template `template`. Behind the
/// token `<goN>`, N from 0 on, it writes the pieces of `scripts[N]`, each one token; no two pieces
/// are equal. Those in `special` are special tokens.
pub(crate) fn model(name: &str, template: &str, scripts: &[&[&str]], special: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scripted").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let (mut added, mut successors) = (vec![added_token("</s>", EOS, true)], vec![EOS; SIZE]);
    for (at, script) in scripts.iter().enumerate() {
        let mut last = EOS + added.len();
        added.push(added_token(&format!("<go{at}>"), last, true));
        for piece in *script {
            let id = EOS + added.len();
            added.push(added_token(piece, id, special.contains(piece)));
            successors[last] = id;
            last = id;
        }
    }
    assert!(EOS + added.len() <= SIZE);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": SIZE,
        "hidden_size": SIZE, "intermediate_size": HEAD, "num_hidden_layers": 1,
        "num_attention_heads": SIZE / HEAD, "num_key_value_heads": 1, "head_dim": HEAD,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "bos_token_id": EOS,
        "eos_token_id": EOS, "torch_dtype": "float32",
    });
    let tokenizer_config = json!({ "eos_token": "</s>", "chat_template": template });
    let write = |file: &str, json: &Value| {
        fs::write(folder.join(file), json.to_string()).expect("written");
    };
    write("config.json", &config);
    write("tokenizer_config.json", &tokenizer_config);
    write("tokenizer.json", &tokenizer(&added));
    fs::write(folder.join("model.safetensors"), weights(&successors)).expect("written");
    folder
}

fn added_token(text: &str, id: usize, special: bool) -> Value {
    json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special })
}

/// A byte-level tokenizer without merges.
fn tokenizer(added: &[Value]) -> Value {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let character = |byte: u8| match printable(&byte) {
        true => char::from(byte),
        false => {
            let rank = (0..byte).filter(|b| !printable(b)).count() as u32;
            char::from_u32(256 + rank).expect("a character")
        }
    };
    let vocab = (0..=255u8).map(|byte| (character(byte).to_string(), json!(byte)));
    let vocab: Map<String, Value> = vocab.collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": false });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null,
                   "continuing_subword_prefix": null, "end_of_word_suffix": null,
                   "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                   "vocab": vocab, "merges": [] },
    })
}

/// The weights: attention and MLP add nothing, the head gives a token's successor.
fn weights(successors: &[usize]) -> Vec<u8> {
    let zeros = |rows: usize, columns: usize| (vec![rows, columns], vec![0f32; rows * columns]);
    let ones = || (vec![SIZE], vec![1f32; SIZE]);
    let matrix = |entries: &mut dyn Iterator<Item = (usize, usize)>| {
        let (shape, mut values) = zeros(SIZE, SIZE);
        entries.for_each(|(row, column)| values[row * SIZE + column] = 10.0);
        (shape, values)
    };
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let mut tensors = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), matrix(&mut (0..SIZE).map(|id| (id, id)))),
        ("model.norm.weight".to_owned(), ones()),
        (
            "lm_head.weight".to_owned(),
            matrix(&mut successors.iter().enumerate().map(|(id, &next)| (next, id))),
        ),
        (layer("input_layernorm"), ones()),
        (layer("post_attention_layernorm"), ones()),
    ]);
    for (part, rows, columns) in [
        ("self_attn.q_proj", SIZE, SIZE),
        ("self_attn.k_proj", HEAD, SIZE),
        ("self_attn.v_proj", HEAD, SIZE),
        ("self_attn.o_proj", SIZE, SIZE),
        ("mlp.gate_proj", HEAD, SIZE),
        ("mlp.up_proj", HEAD, SIZE),
        ("mlp.down_proj", SIZE, HEAD),
    ] {
        tensors.insert(layer(part), zeros(rows, columns));
    }
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let start = data.len();
        values.iter().for_each(|value| data.extend(value.to_le_bytes()));
        let offsets = [start, data.len()];
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }));
    }
    let mut header = Value::from(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
