//! Any bytes as a GGUF file: refused in one line, or a model whose bytes can be read, a chat
//! template and a tokenizer that encodes and decodes any text.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trail_runtime::model::LoadError;
use trail_runtime::model::gguf::GgufModel;
use trail_runtime::text::{ChatTemplate, Tokenizer};

const TEXT: &str = "The table of 9:\n 9, 18 \u{1F600} \u{65e5}\u{672c}<|im_end|></s>\u{FFFD}";

fn read(bytes: &[u8]) -> Result<(), LoadError> {
    let gguf = GgufModel::from_storage(Path::new("m.gguf"), Arc::new(bytes.to_vec()))?;
    if let Ok(model) = gguf.model() {
        model.weights.layers[0].matrices().for_each(|matrix| drop(matrix.to_f32()));
    }
    let vocab_size = gguf.config()?.vocab_size;
    ChatTemplate::from_gguf(gguf.metadata(), vocab_size)?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata(), vocab_size)?;
    for special in [false, true] {
        for encoded in [tokenizer.encode(TEXT, special), tokenizer.encode_text(TEXT, special)] {
            // A tokenizer may have no token for a character, and then refuses the text.
            let Ok(ids) = encoded else { continue };
            assert!(ids.iter().all(|&id| (id as usize) < vocab_size));
            tokenizer.decode(&ids, special);
        }
    }
    tokenizer.least_tokens("a 1\u{e9}");
    Ok(())
}

// A panic of the tokenizers crate is an error of its caller; one that nothing catches still aborts.
fuzz_target!(init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))), |bytes: &[u8]| {
    if let Err(error) = read(bytes) {
        assert_eq!(error.to_string().lines().count(), 1);
    }
});
