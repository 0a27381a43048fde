//! The server over HTTP, each test with its own process.

mod answers;
mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod drain;
mod edges;
mod embeddings;
mod endpoints;
mod errors;
mod gateway;
mod keys;
mod lifetime;
mod messages;
mod operation;
mod prompt_scores;
mod responses;
mod reuse;
mod text;
mod timeouts;
mod transport;
