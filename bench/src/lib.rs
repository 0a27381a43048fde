//! `trail-rt bench`: one part at a time, against the limit it works under.

// One function is this crate's interface: elsewhere `pub` marks a module's interface to the others.
#![allow(unreachable_pub)]

mod ceilings;
mod decode;
mod decoding;
mod gpu;
mod kernels;
mod link;
mod load;
mod overlap;
mod prefill;
mod scheduler;
mod serve;
mod subject;
mod swap;
mod timeline;

use clap::{Args, Subcommand};
use serde_json::Value;
use trail_setup::{EngineArgs, Error, ModelArgs};

use decode::DecodeArgs;
use kernels::KernelsArgs;
use load::LoadArgs;
use overlap::OverlapArgs;
use prefill::PrefillArgs;
use scheduler::SchedulerArgs;
use serve::ServeArgs;
use subject::{Subject, SubjectArgs};
use swap::SwapArgs;

/// Options of `trail-rt bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    part: Part,
}

/// What is measured.
#[derive(Subcommand, Debug)]
enum Part {
    /// A decode step, as a share of the machine's read bandwidth
    Decode {
        #[command(flatten)]
        subject: SubjectArgs,
        #[command(flatten)]
        args: DecodeArgs,
    },
    /// Taking in a prompt, as a share of the machine's multiply-add peak
    Prefill {
        #[command(flatten)]
        subject: SubjectArgs,
        #[command(flatten)]
        args: PrefillArgs,
    },
    /// What tap and probe add to a decode step
    Overlap {
        #[command(flatten)]
        subject: SubjectArgs,
        #[command(flatten)]
        args: OverlapArgs,
    },
    /// CUDA kernels: which there are and where they were proven (--list), or each against its limit
    Kernels(KernelsArgs),
    /// The weights' way to a GPU, as a share of what the link carries
    Load {
        #[command(flatten)]
        subject: SubjectArgs,
        #[command(flatten)]
        args: LoadArgs,
    },
    /// KV blocks to the host and back, as a share of what the link carries
    Swap(SwapArgs),
    /// A step of the scheduler alone
    Scheduler(SchedulerArgs),
    /// Policies against each other under load: forced output lengths, replayed predictions
    Serve(ServeArgs),
}

/// Measures one part and prints the figures.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &BenchArgs,
    json: bool,
) -> Result<(), Error> {
    if let Part::Serve(args) = &args.part {
        return serve::run(args, model, engine, json);
    }
    let load = |subject| Subject::load(subject, model, engine);
    let figures: Result<Value, String> = match &args.part {
        Part::Decode { subject, args } => {
            load(subject)?.on(|s| decode::run(args, s), |s| gpu::decode(args, s))
        }
        Part::Prefill { subject, args } => {
            load(subject)?.on(|s| prefill::run(args, s), |s| gpu::prefill(args, s))
        }
        Part::Overlap { subject, args } => {
            let subject = load(subject)?;
            overlap::with_timeline(args, &subject, |subject| overlap::run(args, subject))
        }
        Part::Load { subject, args } => load::run(args, &load(subject)?),
        Part::Swap(args) => swap::run(args, engine),
        Part::Kernels(args) => kernels::run(args),
        Part::Scheduler(args) => scheduler::run(args, engine),
        Part::Serve(_) => unreachable!("has its own report"),
    };
    let figures = figures.map_err(Error::failed)?;
    match json {
        true => println!("{figures}"),
        false => println!("{figures:#}"),
    }
    Ok(())
}
