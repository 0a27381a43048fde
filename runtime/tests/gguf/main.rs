//! Models and tokenizers from GGUF files.

mod damage;
#[path = "../support/gguf.rs"]
mod gguf;
#[path = "../support/golden.rs"]
#[allow(dead_code, reason = "another target uses the rest")]
mod golden;
mod model;
mod pairing;
mod refusal;
mod support;
mod tokenizer;
