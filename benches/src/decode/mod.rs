//! `bench decode`: time of a decode step, as a share of the least time its bytes and multiply-adds
//! take on the same machine in the same run.

mod cpu;
mod gpu;

pub use cpu::fill_kv;

use clap::Args;
use serde_json::Value;
use trail_cli::{Error, count};
use trail_runtime::engine::ComputeDevice;

use crate::adapters::AdapterArgs;
use crate::gpu::LimitArgs;
use crate::model::{BenchModel, MAX_BATCH, MAX_CONTEXT};
use crate::report::{Column, Group};

/// Options of `bench decode`.
#[derive(Args, Clone, Debug)]
pub struct DecodeArgs {
    /// Batch sizes
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = count::<MAX_BATCH>)]
    pub batch: Vec<usize>,
    /// Tokens in each row's context, the new one included
    #[arg(long, default_value_t = 128, value_parser = count::<MAX_CONTEXT>)]
    pub context: usize,
    /// Reference rates of a GPU
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Adapters that the rows have in turn: each batch is measured without and with them, one after
    /// the other.
    #[command(flatten)]
    pub adapters: AdapterArgs,
}

/// Columns of the printed table.
pub const COLUMNS: &[Group] = &[
    Group(
        "",
        &[
            Column("batch", "/batch", 0),
            Column("context", "/context", 0),
            Column("adapters", "/adapters", 0),
        ],
    ),
    Group(
        "step, us",
        &[
            Column("median", "/step_us/median", 1),
            Column("best", "/step_us/best", 1),
            Column("floor", "/floor_us", 1),
        ],
    ),
    Group("", &[Column("tokens/s", "/tokens_per_s", 1), Column("GB/s", "/gb_per_s", 2)]),
    Group(
        "share of",
        &[
            Column("read bandwidth", "/share_of_read_bandwidth", 3),
            Column("floor", "/share_of_floor", 3),
        ],
    ),
    Group("barriers", &[Column("a step", "/regions", 0), Column("share", "/barrier_share", 4)]),
    Group("launch, us", &[Column("p50", "/launch_us/p50", 1), Column("p99", "/launch_us/p99", 1)]),
];

/// Measures on the device of `bench`.
pub fn run(args: &DecodeArgs, bench: &BenchModel) -> Result<Value, Error> {
    let largest = args.batch.iter().copied().max().unwrap_or(1);
    match bench.device() {
        ComputeDevice::Cpu => cpu::run(args, bench, largest),
        ComputeDevice::Cuda { .. } if !args.adapters.is_empty() => {
            Err(Error::usage("adapters are computed on the CPU alone: choose --device cpu"))
        }
        ComputeDevice::Cuda { .. } => Ok(gpu::run(args, bench, largest)?),
    }
}
