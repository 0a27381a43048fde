//! Models from files: what loads and what is refused, and the passes over what has loaded.

mod adapters;
mod blocks;
mod config;
mod damage;
mod gguf;
mod golden;
mod hybrids;
mod quantized;
mod refusal;
mod zero_copy;
