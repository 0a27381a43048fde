//! Shared by the program `trail-rt` and its benchmarks: command-line options, loading a model and
//! building its engine, driving a workload, and the reports on stdout and stderr.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![forbid(unsafe_code)]

mod answer;
mod args;
mod count;
mod cpu_args;
mod detokenizer;
mod draft;
pub mod drive;
mod embedder;
mod error;
mod fingerprint;
pub mod hub;
mod json_lines;
mod loaded;
mod locate;
mod log_line;
mod lora_args;
pub mod machine;
mod model_args;
mod notice;
mod open_model;
mod output;
pub mod output_file;
mod parsed_args;
mod parser_message;
mod prediction_args;
mod prediction_files;
mod progress;
pub mod random;
mod ranking_args;
mod record;
mod serving_policy;
mod setup;
mod shared;
mod signal;
mod size;
mod spread;
mod table;

pub use answer::Answer;
pub use args::{Device, EngineArgs};
pub use count::count;
pub use cpu_args::CpuArgs;
pub use detokenizer::{Detokenizer, TextDecoder, TextOptions};
pub use embedder::Embedder;
pub use error::Error;
pub use fingerprint::fingerprint;
pub use json_lines::read_json_lines;
pub use locate::demo_model;
pub use log_line::{LogFormat, LogLevel, LogSettings};
pub use lora_args::{LoraArgs, NamedAdapter};
pub use model_args::ModelArgs;
pub use notice::{dropped_notices, flush_notices, log_record, notice, queue_notices};
pub use open_model::OpenModel;
pub use output::Output;
pub use output_file::OutputFile;
pub use parser_message::message_and_tip;
pub use prediction_files::PREDICTOR;
pub use ranking_args::{RankingArgs, described_policy};
pub use record::LogFile;
pub use setup::Setup;
pub use shared::EngineShare;
pub use signal::{Signal, SignalKind};
pub use size::size;
pub use spread::Spread;
pub use table::Table;
