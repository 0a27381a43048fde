//! The server over HTTP, each test with its own process.

mod adapters;
mod answers;
mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod dialects;
mod drain;
mod edges;
mod embeddings;
mod endpoints;
mod errors;
mod gateway;
mod keys;
mod lifetime;
mod live;
mod messages;
mod openapi;
mod operation;
mod policy;
mod prompt_scores;
mod proxy;
mod responses;
mod reuse;
mod several_models;
mod structured;
mod text;
mod timeouts;
mod tools;
mod transport;
