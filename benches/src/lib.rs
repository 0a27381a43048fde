//! `trail-rt bench`: one part at a time, against the limit it works under.

// Two items are this crate's interface: elsewhere `pub` marks a module's interface to the others.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(unreachable_pub)]

mod ab;
mod accuracy;
mod adapters;
mod answers;
mod barrier;
mod ceilings;
mod decode;
mod decoding;
mod flips;
mod gpu;
mod http;
mod kernels;
mod link;
mod load;
mod model;
mod overlap;
mod prefill;
mod probe;
mod reads;
mod report;
mod sampling;
mod scheduler;
mod serve;
mod speculation;
mod steps;
mod structured;
mod swap;
mod timeline;

use clap::{Args, Subcommand};
use serde_json::Value;
use trail_cli::{EngineArgs, Error, ModelArgs, Output, OutputFile};

use ab::AbArgs;
use accuracy::AccuracyArgs;
use decode::DecodeArgs;
use flips::FlipsArgs;
pub use gpu::checks::{GPU_CHECKS, GpuCheck, check_gpu};
use http::HttpArgs;
use kernels::KernelsArgs;
use load::LoadArgs;
use model::{BenchModel, BenchModelArgs};
use overlap::OverlapArgs;
use prefill::PrefillArgs;
use probe::ProbeArgs;
use report::BenchReport;
use sampling::SamplingArgs;
use scheduler::SchedulerArgs;
use serve::ServeArgs;
use speculation::SpeculationArgs;
use steps::StepsArgs;
use structured::StructuredArgs;
use swap::SwapArgs;

/// Options of `trail-rt bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    part: Command,
}

/// The part to measure.
#[derive(Subcommand, Debug)]
enum Command {
    /// A decode step, as a share of the machine's read bandwidth
    Decode {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: DecodeArgs,
    },
    /// Prefill of a prompt, as a share of the machine's multiply-add peak
    Prefill {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: PrefillArgs,
    },
    /// Log probabilities of a text by --compute fast (and --kv-dtype) against exact
    Accuracy {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: AccuracyArgs,
    },
    /// The sampler on the CPU, as a share of a decode step
    Sampling {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: SamplingArgs,
    },
    /// Time that tap and probe add to a decode step
    Overlap {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: OverlapArgs,
    },
    /// The probe's MLP and its filter on one thread, as a share of the limit
    Probe(ProbeArgs),
    /// The cost of steps by their work, for the simulated clock of the demo
    Steps {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: StepsArgs,
    },
    /// CUDA kernels: the list with where each was proven (--list), or each against its limit
    Kernels(KernelsArgs),
    /// Upload of the weights to a GPU, as a share of the link's rate
    Load {
        #[command(flatten)]
        model: BenchModelArgs,
        #[command(flatten)]
        args: LoadArgs,
    },
    /// Swap of KV blocks to the host and back, as a share of the link's rate
    Swap(SwapArgs),
    /// A step of the scheduler alone
    Scheduler(SchedulerArgs),
    /// Policies against each other under load: forced output lengths, replayed predictions
    Serve(ServeArgs),
    /// Load on an OpenAI-compatible server over HTTP, at rates that do not wait for it
    Http(HttpArgs),
    /// Tokens per second with draft tokens over those without, on copies and on free answers
    Speculation(SpeculationArgs),
    /// The cost of constraints on answers, and the gain by forced tokens
    Structured(StructuredArgs),
    /// Answers under settings that must not matter, against those of each request alone, to the bit
    Flips(FlipsArgs),
    /// This build against another, by any of these benchmarks: interleaved runs, ratios of figures
    Ab(AbArgs),
}

/// Measures one part and prints its report, as one JSON object if `json`; `draw_http` draws that of
/// `bench http`.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &BenchArgs,
    json: bool,
    draw_http: impl FnOnce(&Value) -> Result<String, Error>,
) -> Result<(), Error> {
    let plot = match &args.part {
        Command::Http(HttpArgs { plot: Some(path), .. }) => {
            Some(OutputFile::claim(path.clone(), false)?)
        }
        _ => None,
    };
    let (BenchReport { json: object, text }, failure) = args.part.measure(model, engine)?;
    if let Some(plot) = plot {
        plot.write(&draw_http(&object)?)?;
    }
    match json {
        true => Output::stdout().line(&object.to_string()),
        false => Output::stdout().line(&text),
    }?;
    failure.map_or(Ok(()), Err)
}

impl Command {
    /// Returns the report, and the failure that follows it.
    fn measure(
        &self,
        model: &ModelArgs,
        engine: &EngineArgs,
    ) -> Result<(BenchReport, Option<Error>), Error> {
        let load = |args| BenchModel::load(args, model, engine);
        let (report, columns) = match self {
            Command::Decode { model, args } => (decode::run(args, &load(model)?), decode::COLUMNS),
            Command::Prefill { model, args } => {
                (prefill::run(args, &load(model)?), prefill::COLUMNS)
            }
            Command::Accuracy { model, args } => (accuracy::run(args, &load(model)?), &[][..]),
            Command::Sampling { model, args } => {
                (sampling::run(args, &load(model)?), sampling::COLUMNS)
            }
            Command::Overlap { model, args } => {
                (overlap::run(args, &load(model)?), overlap::COLUMNS)
            }
            Command::Probe(args) => (probe::run(args, engine), probe::COLUMNS),
            Command::Steps { model, args } => (steps::run(args, &load(model)?), steps::COLUMNS),
            Command::Kernels(args) => {
                let report = kernels::run(args)?;
                let failure = kernels::failure(&report);
                return Ok((BenchReport::new(report, kernels::COLUMNS), failure));
            }
            Command::Load { model, args } => (load::run(args, &load(model)?), &[][..]),
            Command::Swap(args) => (swap::run(args, engine), &[][..]),
            Command::Scheduler(args) => (scheduler::run(args, engine), &[][..]),
            Command::Speculation(args) => {
                (speculation::run(args, model, engine), speculation::COLUMNS)
            }
            Command::Structured(args) => {
                (structured::run(args, model, engine), structured::COLUMNS)
            }
            Command::Serve(args) => return Ok((serve::run(args, model, engine)?, None)),
            Command::Http(args) => return Ok((http::run(args)?, None)),
            Command::Flips(args) => return flips::run(args, model, engine),
            Command::Ab(args) => return ab::run(args),
        };
        Ok((BenchReport::new(report?, columns), None))
    }
}
