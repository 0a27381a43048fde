//! `bench prefill`: time of a prompt's prefill, as a share of the machine's multiply-add rate.

mod cpu;
mod gpu;

use clap::Args;
use serde_json::Value;
use trail_runtime::engine::ComputeDevice;
use trail_cli::{Error, count};

use crate::gpu::{LimitArgs, at_least_one};
use crate::model::{BenchModel, MAX_CONTEXT};
use crate::report::{Column, Group};

/// Options of `bench prefill`.
#[derive(Args, Clone, Debug)]
pub struct PrefillArgs {
    /// Prompt lengths
    #[arg(long, value_delimiter = ',', default_value = "512", value_parser = count::<MAX_CONTEXT>)]
    pub tokens: Vec<usize>,
    /// GPU: rows of a step; longer prompts take several steps [default: the longest prompt]
    #[arg(long, value_parser = at_least_one)]
    pub rows: Option<usize>,
    /// Reference rates of a GPU
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Columns of the printed table.
pub const COLUMNS: &[Group] = &[
    Group("", &[Column("tokens", "/tokens", 0), Column("seconds", "/seconds", 6)]),
    Group("", &[Column("tokens/s", "/tokens_per_s", 1)]),
    Group("", &[Column("GFLOP/s", "/gflop_per_s", 1), Column("TFLOP/s", "/tflop_per_s", 2)]),
    Group(
        "share of",
        &[
            Column("FMA peak", "/share_of_fma_peak", 3),
            Column("byte peak", "/share_of_byte_peak", 3),
            Column("bf16 peak", "/share_of_bf16_peak", 3),
            Column("matrix rate", "/share_of_matrix_rate", 3),
        ],
    ),
];

/// Measures on the device of `bench`.
pub fn run(args: &PrefillArgs, bench: &BenchModel) -> Result<Value, Error> {
    let longest = args.tokens.iter().copied().max().unwrap_or(1);
    match bench.device() {
        ComputeDevice::Cpu => cpu::run(args, bench, longest),
        ComputeDevice::Cuda { .. } => Ok(gpu::run(args, bench, longest)?),
    }
}
