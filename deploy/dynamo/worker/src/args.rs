//! Command line of the worker.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use dynamo_backend_common::CommonArgs;
use trail_cli::{EngineArgs, ModelArgs};
use trail_simulator::Noise;

/// Serves a model as a worker of NVIDIA Dynamo.
#[derive(Parser, Clone, Debug)]
#[command(name = "trail-dynamo-worker", version)]
pub struct Args {
    #[command(flatten)]
    pub common: CommonArgs,
    /// The engine: trail-rt's, or a simulation by the wall clock
    #[arg(long, value_enum, default_value_t = EngineName::Real)]
    pub engine: EngineName,
    /// Name of the model in requests and responses [default: that of its folder or file]
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub engine_args: EngineArgs,
    /// Seconds that running requests have to end after SIGTERM; then they move
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_seconds: u32,
    /// sim: JSON file with the four step costs that bench steps writes [default: 20 ms a step]
    #[arg(long, value_name = "FILE")]
    pub step_cost: Option<PathBuf>,
    /// sim: predictions of the length where the request brings none: release, demo, oracle,
    /// none, gaussian:SIGMA
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub noise: Noise,
    /// sim: break down after as many steps, to try out what follows
    #[arg(long, value_name = "STEPS")]
    pub break_after: Option<u64>,
}

/// Values of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// The model runs.
    Real,
    /// The scheduler runs; the model's time is slept, and a token is a function of its position.
    Sim,
}
