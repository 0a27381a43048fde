//! Damaged GGUF files: refused in one line, or loaded; never a panic or a huge allocation.

use std::path::Path;
use std::sync::Arc;

use trail_counting_allocator::take_largest_of_thread;
use trail_runtime::model::gguf::GgufModel;
use trail_runtime::text::{ChatTemplate, Tokenizer};

use super::support::load;
use trail_test_support::gguf::{GgufWriter, gguf_of, unchanged};

/// Largest allocation of loading a file of a few KiB, bytes. The tokenizers crate's cache of words
/// takes the largest part.
const MAX_ALLOCATION: usize = 4 << 20;

/// A model of 9 KiB with a vocabulary: its bytes, and the length of its header.
fn small() -> (Vec<u8>, usize) {
    let mut file: GgufWriter = gguf_of(&load("llama2-f32").1, unchanged);
    let tokens: Vec<String> = (0..64).map(|id| format!("t{id}")).collect();
    let mut tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    tokens[..6].copy_from_slice(&["<s>", "<|im_end|>", "a", "b", "ab", "\n"]);
    let mut kinds = [1; 64];
    (kinds[0], kinds[1], kinds[5]) = (3, 3, 4);
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
    file.texts("tokenizer.ggml.tokens", &tokens).ints("tokenizer.ggml.token_type", &kinds);
    file.texts("tokenizer.ggml.merges", &["a b"]).int("tokenizer.ggml.bos_token_id", 0);
    file.text("tokenizer.chat_template", "{{ messages[0]['content'] }}");
    file.file()
}

/// Loads all that is in `bytes`. Returns the error, which has one line.
fn read(bytes: &[u8]) -> Result<(), String> {
    let storage = Arc::new(bytes.to_vec());
    take_largest_of_thread();
    let loaded = (|| {
        let gguf = GgufModel::from_storage(Path::new("m.gguf"), storage)?;
        let model = gguf.model()?;
        model.weights.lm_head.bytes();
        let vocab_size = model.config.vocab_size;
        ChatTemplate::from_gguf(gguf.metadata(), vocab_size)?;
        Tokenizer::from_gguf(gguf.metadata(), vocab_size)
    })();
    let largest = take_largest_of_thread();
    assert!(largest <= MAX_ALLOCATION, "an allocation of {largest} bytes");
    match loaded {
        Ok(tokenizer) => {
            let _ = tokenizer.encode("ab <|im_end|>\n", true);
            Ok(())
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.lines().count() == 1 && message.len() < 1200, "{message:?}");
            Err(message)
        }
    }
}

#[test]
fn truncated_files_are_refused() {
    let (bytes, _) = small();
    read(&bytes).expect("a sound file");
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{len} bytes of {}", bytes.len());
    }
}

/// Every byte of the header with all its bits flipped, and with the lowest and the highest one.
#[test]
fn flipped_header_fields_do_not_panic() {
    let (mut bytes, header) = small();
    for at in 0..header {
        for flip in [0xff, 0x01, 0x80] {
            bytes[at] ^= flip;
            let _ = read(&bytes);
            bytes[at] ^= flip;
        }
    }
}

#[test]
fn random_mutations_do_not_panic() {
    const PIECES: [&[u8]; 8] = [
        b"",
        &[0xff; 8],
        &[0; 8],
        &[0xff, 0xff, 0xff, 0x7f],
        &[1, 0, 0, 0, 0, 0, 0, 0x80],
        b"GGUF",
        b"\xff\xfe",
        &[9, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    ];
    let (bytes, header) = small();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..10_000 {
        let mut bytes = bytes.clone();
        for _ in 0..1 + random % 3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (random >> 8) as usize % header.min(bytes.len());
            let len = ((random >> 40) as usize % 12).min(bytes.len() - at);
            let piece = PIECES[random as usize % PIECES.len()];
            bytes.splice(at..at + len, piece.iter().copied());
        }
        let _ = read(&bytes);
    }
}
