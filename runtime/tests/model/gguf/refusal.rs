//! Settings of GGUF files that are refused, and those that are read.

use std::path::Path;
use std::sync::Arc;

use trail_runtime::model::gguf::GgufModel;
use trail_runtime::model::{
    Activation, Architecture, LayerRope, LoadError, Model, ModelConfig, RopePairing, RopeScaling,
};

use trail_runtime::text::Tokenizer;

use super::support::load;
use trail_test_support::gguf::{GgufWriter, gguf_of, unchanged};

fn open(file: &GgufWriter) -> Result<GgufModel, LoadError> {
    GgufModel::from_storage(Path::new("m.gguf"), Arc::new(file.file().0))
}

fn config(file: &GgufWriter) -> ModelConfig {
    open(file).and_then(|model| model.config()).expect("a configuration")
}

/// The error of loading `file`, which has one line and names the place.
fn refusal(file: &GgufWriter) -> String {
    let loaded: Result<Model, _> = open(file).and_then(|model| model.model());
    let message = loaded.expect_err("refused").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

fn small() -> GgufWriter {
    gguf_of(&load("llama2-f32").1, unchanged)
}

/// A change to a sound file.
type Change = fn(&mut GgufWriter) -> &mut GgufWriter;

#[test]
fn what_the_forward_pass_lacks_is_refused_by_its_key() {
    let changes: [(&str, Change); 15] = [
        ("general.architecture", |file| file.text("general.architecture", "mamba")),
        ("llama.rope.scaling.type", |file| file.text("llama.rope.scaling.type", "yarn")),
        ("llama.expert_used_count", |file| file.int("llama.expert_count", 8)),
        ("blk.0.ffn_gate_inp.weight", |file| {
            file.int("llama.expert_count", 8).int("llama.expert_used_count", 2)
        }),
        ("llama.expert_count", |file| file.int("llama.expert_count", 1 << 20)),
        ("qwen3.expert_count", |file| {
            let keys = ["embedding_length", "block_count", "context_length", "vocab_size"];
            for key in keys {
                file.int(&format!("qwen3.{key}"), 1);
            }
            file.text("general.architecture", "qwen3").int("qwen3.expert_count", 8);
            file.int("qwen3.attention.head_count", 1).int("qwen3.feed_forward_length", 8)
        }),
        ("llama.attention.value_length", |file| file.int("llama.attention.value_length", 4)),
        ("llama.rope.dimension_count", |file| file.int("llama.rope.dimension_count", 4)),
        ("llama.final_logit_softcapping", |file| file.float("llama.final_logit_softcapping", 30.0)),
        ("llama.attention.head_count", |file| file.ints("llama.attention.head_count", &[2, 1])),
        ("llama.block_count", |file| file.remove("llama.block_count")),
        ("llama.attention.head_count_kv", |file| file.int("llama.attention.head_count_kv", 0)),
        ("blk.0.attn_q.bias", |file| file.vector("blk.0.attn_q.bias", &[0.0; 32])),
        ("rope_factors_long.weight", |file| file.vector("rope_factors_long.weight", &[1.0; 4])),
        ("rope_freqs.weight", |file| file.vector("rope_freqs.weight", &[0.0; 4])),
    ];
    for (key, change) in changes {
        let mut file = small();
        change(&mut file);
        let message = refusal(&file);
        assert!(message.contains(key), "{key}: {message}");
    }
}

#[test]
fn a_list_of_equal_numbers_is_the_number() {
    let mut file = small();
    let one = config(&file);
    let count = i32::try_from(one.num_kv_heads).expect("a count");
    file.ints("llama.attention.head_count_kv", &[count; 6]);
    assert_eq!(config(&file).num_kv_heads, one.num_kv_heads);
    for unequal in [&[count, count + 1][..], &[]] {
        file.ints("llama.attention.head_count_kv", unequal);
        let message = refusal(&file);
        assert!(
            message.contains("head_count_kv") && message.contains("a list of numbers"),
            "{message}"
        );
    }
}

#[test]
fn a_llama_is_read() {
    let mut file = small();
    let tokens: Vec<String> = (0..64).map(|id| format!("t{id}")).collect();
    let mut tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    (tokens[5], tokens[6], tokens[7], tokens[8]) = ("<|im_end|>", "</s>", "<|end|>", "<eos>");
    // `<|end|>` ends an answer also where a converter has typed it as text, `<eos>` does not.
    let mut kinds = [1; 64];
    (kinds[5], kinds[6]) = (3, 3);
    file.texts("tokenizer.ggml.tokens", &tokens).ints("tokenizer.ggml.token_type", &kinds);
    file.int("tokenizer.ggml.bos_token_id", 1).int("tokenizer.ggml.eos_token_id", 6);
    file.int("tokenizer.ggml.eot_token_id", 9);
    let config = config(&file);
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!((config.vocab_size, config.bos_token), (64, Some(1)));
    assert_eq!(config.eos_tokens, [6, 9, 5, 7]);
    assert_eq!(config.windows, [None, None]);
}

#[test]
fn a_gemma_is_read() {
    let mut file = GgufWriter::default();
    file.text("general.architecture", "gemma3");
    let sizes = [
        ("embedding_length", 64),
        ("block_count", 7),
        ("context_length", 128),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("attention.sliding_window", 16),
        ("vocab_size", 32),
    ];
    for (key, size) in sizes {
        file.int(&format!("gemma3.{key}"), size);
    }
    file.float("gemma3.attention.layer_norm_rms_epsilon", 1e-6);
    file.float("gemma3.rope.freq_base", 1e6).text("gemma3.rope.scaling.type", "linear");
    file.float("gemma3.rope.scaling.factor", 8.0);
    let config = config(&file);
    assert_eq!(config.rope_pairing, RopePairing::Halves);
    assert_eq!((config.embedding_scale, config.activation), (8.0, Activation::GeluTanh));
    assert_eq!(config.attention_scale, None);
    assert_eq!(config.windows[4..], [Some(16), None, Some(16)]);
    assert_eq!(config.layer_rope(4), LayerRope::Local);
    assert_eq!(config.layer_rope(5), LayerRope::Global);
    assert_eq!(config.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    let local = config.local_rope.expect("local layers");
    assert_eq!((local.theta, local.scaling), (10_000.0, RopeScaling::None));
    assert!(config.tie_word_embeddings);
    file.remove("gemma3.rope.freq_base");
    assert!(refusal(&file).contains("gemma3.rope.freq_base"));
}

#[test]
fn a_vocabulary_has_each_token_once() {
    let mut file = small();
    file.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["a", "b", "a"]);
    let model = open(&file).expect("sound metadata");
    let error = Tokenizer::from_gguf(model.metadata(), 64).err().expect("refused").to_string();
    assert!(error.contains("\"a\" twice"), "{error}");
}

#[test]
fn a_list_longer_than_any_vocabulary_is_not_built() {
    let mut file = small();
    file.ints("tokenizer.ggml.merges", &vec![0; (1 << 24) + 1]);
    assert!(open(&file).err().expect("refused").to_string().contains("16777216 items"));
}
