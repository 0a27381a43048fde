//! Tokenizers and chat templates.

mod safety;
mod transformers;
