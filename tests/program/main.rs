//! The program's commands, each run as a process.

mod advise;
mod bench_ab;
mod bench_http;
mod bench_serve;
mod bench_timeline;
mod chat;
mod chat_terminal;
mod cli;
mod closed_output;
mod collection;
#[path = "../common/mod.rs"]
mod common;
mod completions;
mod control_characters;
mod damaged;
mod demo;
mod encoder;
mod gguf;
mod gguf_file;
mod hub;
mod inspect;
mod mapped_file;
mod messages;
mod options;
mod predictor;
mod probe;
mod pull;
mod replay;
mod simulate;
#[cfg(target_os = "linux")]
mod terminal;
