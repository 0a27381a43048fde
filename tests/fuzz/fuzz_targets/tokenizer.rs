//! Any bytes as a tokenizer.json: refused in one line, or a tokenizer that encodes and decodes any
//! text.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use trail_runtime::text::Tokenizer;

const TEXT: &str = "The table of 9:\n 9, 18 \u{1F600} \u{65e5}\u{672c}<|im_end|>\u{FFFD}";

// A panic of the tokenizers crate is an error of its caller; one that nothing catches still aborts.
fuzz_target!(init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))), |bytes: &[u8]| {
    match Tokenizer::from_bytes(Path::new("tokenizer.json"), bytes, 1 << 20) {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok(tokenizer) => {
            for special in [false, true] {
                // A tokenizer may have no token for a character, and then refuses the text.
                let Ok(ids) = tokenizer.encode(TEXT, special) else { continue };
                tokenizer.decode(&ids, special);
            }
            tokenizer.least_tokens("a 1\u{e9}");
        }
    }
});
