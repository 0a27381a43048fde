//! Models and tokenizers from GGUF files.

mod damage;
mod model;
mod pairing;
mod refusal;
mod support;
mod tokenizer;
