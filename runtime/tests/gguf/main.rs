//! Models and tokenizers from GGUF files.

#[path = "../support/golden.rs"]
#[allow(dead_code, reason = "another target uses the rest")]
mod golden;
mod pairing;
mod support;
