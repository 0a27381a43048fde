//! The options that several commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trail_runtime::cpu::Isa;
use trail_runtime::engine::{
    DEFAULT_C, DEFAULT_MAX_REQUESTS, DEFAULT_SLOTS, DEFAULT_TOKEN_BUDGET, PolicyKind,
};

// Bounds of what can be asked for: above what any machine can use, below what memory cannot hold or
// a system refuses. That KV blocks fit this machine is checked once the model is known.
const MAX_SLOTS: usize = 4096;
const MAX_TOKEN_BUDGET: usize = 1 << 16;
const MAX_REQUESTS: usize = 1 << 20;
const MAX_THREADS: usize = 1024;
const MAX_KV_BLOCKS: usize = 1 << 27;

/// Which model, and what predicts for it.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A safetensors file with config.json and tokenizer.json beside it, or a folder of them
    /// [default: the bundled demo model]
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) model: Option<PathBuf>,
    /// The remaining-length probe [default: probe.safetensors beside the model, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) probe: Option<PathBuf>,
}

/// What computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The best that this machine has and this build can use.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
}

/// How the engine is put together.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Which requests run first: fcfs, sjf, trail or oracle
    /// [default: trail where there is a probe, else fcfs]
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) policy: Option<PolicyKind>,
    /// trail: a request can be preempted during this share of its first predicted length, 0 to 1
    #[arg(
        long,
        global = true,
        value_name = "SHARE",
        default_value_t = DEFAULT_C,
        value_parser = share,
    )]
    c: f32,
    /// Sequences in one forward pass
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = DEFAULT_SLOTS,
        value_parser = count::<MAX_SLOTS>,
    )]
    pub(super) slots: usize,
    /// KV blocks of 16 tokens [default: what the slots can need and half as much again, within 4 GiB]
    #[arg(long, global = true, value_name = "N", value_parser = count::<MAX_KV_BLOCKS>)]
    pub(super) kv_blocks: Option<usize>,
    /// Threads of the forward pass [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = count::<MAX_THREADS>)]
    pub(super) threads: Option<usize>,
    /// Tokens in one forward pass, of prompts and of answers
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = DEFAULT_TOKEN_BUDGET,
        value_parser = count::<MAX_TOKEN_BUDGET>,
    )]
    pub(super) token_budget: usize,
    /// Requests in the engine at once, running and waiting; more are refused
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = DEFAULT_MAX_REQUESTS,
        value_parser = count::<MAX_REQUESTS>,
    )]
    pub(super) max_requests: usize,
    /// What computes
    #[arg(long, global = true, value_enum, default_value_t = Device::Auto)]
    pub(super) device: Device,
    /// Instruction set of the CPU kernels: auto, portable, avx2 or avx512
    #[arg(long, global = true, value_name = "NAME", default_value_t = Isa::Auto)]
    pub(super) isa: Isa,
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(c) if (0.0..=1.0).contains(&c) => Ok(c),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// A number from 1 to `MAX`.
fn count<const MAX: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX}")),
    }
}

impl EngineArgs {
    /// Threads of the forward pass.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores)
    }

    /// The policy that was named; TRAIL if none was.
    pub fn policy_or_trail(&self) -> PolicyKind {
        self.with_c(self.policy.unwrap_or(PolicyKind::Trail { c: DEFAULT_C }))
    }

    /// Instruction set of the CPU kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `policy` with the `--c` that was asked for.
    pub fn with_c(&self, policy: PolicyKind) -> PolicyKind {
        match policy {
            PolicyKind::Trail { .. } => PolicyKind::Trail { c: self.c },
            other => other,
        }
    }
}
