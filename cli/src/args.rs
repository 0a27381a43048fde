//! Command-line options common to several commands.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use trail_runtime::cuda::{self, OrderChoice};
use trail_runtime::engine::{ComputeDevice, CudaSettings, PolicyKind, ProbeDevice};
use trail_runtime::engine::{DEFAULT_C, DEFAULT_MAX_QUEUE_BYTES, DEFAULT_MAX_REQUESTS, WhenFull};
use trail_scheduler::limits::MAX_CONTEXT;
use trail_scheduler::{Preemption, Reserve, SchedulerConfig};

use crate::count::{count, count_u32};
use crate::cpu_args::CpuArgs;
use crate::draft::SpeculateArg;
use crate::ranking_args::RankingArgs;

// Upper bounds of the options: more than any machine can use, less than what exhausts memory or a
// system limit. Setup checks that the KV blocks fit this machine once the model is known.
const MAX_RUNNING: usize = 4096;
const MAX_TOKEN_BUDGET: usize = 1 << 16;
const MAX_REQUESTS: usize = 1 << 20;
const MAX_QUEUE_MIB: usize = 1 << 20;
const MAX_THREADS: usize = 1024;

/// Sequences in a step of a CPU where only the throughput counts.
const THROUGHPUT_RUNNING: usize = 32;
const MAX_KV_BLOCKS: usize = 1 << 27;

/// The device requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The first GPU, or the CPU where there is none that can run the kernels.
    Auto,
    /// Exactly this device.
    Named(ComputeDevice),
}

impl Device {
    /// The device on this machine.
    pub fn resolve(self) -> ComputeDevice {
        match self {
            Device::Named(device) => device,
            Device::Auto if cuda::inventory::usable().unwrap_or(false) => {
                ComputeDevice::Cuda { ordinal: 0 }
            }
            Device::Auto => ComputeDevice::Cpu,
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Device::Auto),
            name => name
                .parse()
                .map(Device::Named)
                .map_err(|_| "choose cpu, cuda, cuda:NUMBER or auto".to_owned()),
        }
    }
}

/// Values of `--full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Full {
    Reject,
    Shed,
}

/// Values of `--reserve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Growth {
    Present,
    Mean,
    P90,
}

/// The policies, one a line.
fn policy_help() -> String {
    let mut help = String::from(
        "Which requests run first; parameters follow colons, as in trail:0.5\n\
         [default: trail with a probe; sjf with --length-predictor alone; else fcfs]\n",
    );
    for (name, line) in PolicyKind::HELP {
        help += &format!("\n{name:<15} {line}");
    }
    help
}

/// Options of the engine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Scheduling")]
pub struct EngineArgs {
    /// Which requests run first; parameters follow colons, as in trail:0.5 (--help-all lists all)
    /// [default: trail with a probe; sjf with --length-predictor alone; else fcfs]
    #[arg(long, global = true, value_name = "NAME", long_help = policy_help())]
    pub(crate) policy: Option<PolicyKind>,
    /// Options of the rank.
    #[command(flatten)]
    pub(crate) ranking: RankingArgs,
    /// Most sequences in one step [default: 8 on the CPU, 256 on a GPU]
    #[arg(long, global = true, value_name = "N", value_parser = count::<MAX_RUNNING>)]
    pub(crate) max_running: Option<usize>,
    /// KV blocks of 16 tokens [default: on the CPU 1.5 times the need of all running sequences, at
    /// most half of the available memory; on a GPU all that fit into its memory]
    #[arg(long, global = true, value_name = "N", value_parser = count::<MAX_KV_BLOCKS>)]
    pub(crate) kv_blocks: Option<usize>,
    /// Threads of the forward pass [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = count::<MAX_THREADS>)]
    pub(crate) threads: Option<usize>,
    /// Prompt and output tokens in one forward pass [default: 512 on the CPU, 2048 on a GPU]
    #[arg(long, global = true, value_name = "N", value_parser = count::<MAX_TOKEN_BUDGET>)]
    pub(crate) token_budget: Option<usize>,
    /// Prefill beside a request that decodes is cut into chunks of 16 tokens or more, so that its
    /// next token comes within N ms, or 3 decode steps if those are longer; 0 for no bound
    /// [default: 300 on the CPU, 0 on a GPU]
    #[arg(long, global = true, value_name = "N", value_parser = count_u32::<0>)]
    pub(crate) max_gap_ms: Option<u32>,
    /// Requests in the engine at once, running and waiting; more are refused
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = DEFAULT_MAX_REQUESTS,
        value_parser = count::<MAX_REQUESTS>,
    )]
    pub(crate) max_requests: usize,
    /// With --max-requests requests: reject a new one, or shed the worst ranked one that never ran
    #[arg(long, global = true, value_name = "ACTION", value_enum, default_value_t = Full::Reject)]
    full: Full,
    /// Most memory for the prompts of all requests in the engine, MiB; more are refused
    #[arg(
        long,
        global = true,
        value_name = "MIB",
        default_value_t = (DEFAULT_MAX_QUEUE_BYTES >> 20) as usize,
        value_parser = count::<MAX_QUEUE_MIB>,
    )]
    pub(crate) max_queue_mib: usize,
    /// Steps for which later requests may overtake one that lacks free KV blocks [default: 64]
    #[arg(long, global = true, value_name = "STEPS", value_parser = count_u32::<0>)]
    pub(crate) max_passed_over: Option<u32>,
    /// Steps for which a request that lacks KV blocks then, after --max-passed-over, blocks those
    /// behind it [default: 256]
    #[arg(long, global = true, value_name = "STEPS", value_parser = count_u32::<1>)]
    pub(crate) max_blocked: Option<u32>,
    /// KV blocks that must be free when a request enters the batch: for its present tokens, or also
    /// for the predicted growth of all running requests and its own, by mean or 90 % quantile
    #[arg(long, global = true, value_name = "GROWTH", value_enum, default_value_t = Growth::Present)]
    reserve: Growth,
    /// Output tokens between two predictions of the probe that change a request's rank; in between
    /// its remaining length counts down [default: 1]
    #[arg(long, global = true, value_name = "N", value_parser = refresh)]
    refresh_tokens: Option<u32>,
    /// Device: cpu, cuda, cuda:NUMBER or auto (the first GPU, if any)
    #[arg(long, global = true, value_name = "NAME", default_value = "auto")]
    pub(crate) device: Device,
    /// KV of evicted requests: recompute (dropped and recomputed), swap (moved to host memory and
    /// back) or auto (the cheaper of the two; on the CPU always recompute)
    #[arg(long, global = true, value_name = "NAME", default_value = "auto", value_parser = preemption)]
    pub(crate) preemption: Preemption,
    /// Compute every prompt whole: requests that begin alike share no KV blocks, which they do by
    /// default
    #[arg(long, global = true)]
    pub(crate) no_prefix_cache: bool,
    /// Tokens proposed in advance and verified, which change no answer: auto (those that repeat the
    /// prompt or the answer, where they pay), off, ngram (always) or draft:PATH (those of a smaller
    /// model of the same vocabulary, where they pay; CPU)
    #[arg(long, global = true, value_name = "MODE", default_value = "auto")]
    pub(crate) speculate: SpeculateArg,
    /// GPU: most host memory for swapped KV blocks, GiB; 0 for none
    #[arg(long, global = true, value_name = "GIB", default_value_t = 4)]
    host_kv_gib: usize,
    /// GPU: launch decode steps kernel by kernel instead of replaying graphs
    #[arg(long, global = true)]
    no_graphs: bool,
    /// GPU: order in which products sum: fixed (an answer does not depend on the batch) or free
    /// (the faster one for each number of rows)
    #[arg(long, global = true, value_name = "NAME", default_value = "fixed", value_parser = order)]
    order: OrderChoice,
    /// GPU: all layers of a decode step of up to 4 requests in one launch; no faster on an H200
    #[arg(long, global = true)]
    megakernel: bool,
    /// GPU: device of the probe, cpu or gpu; both run beside the upper layers
    #[arg(long, global = true, value_name = "NAME", default_value = "cpu")]
    probe_device: ProbeDevice,
    /// GPU: longest time in which no step ends before the device is taken to hang
    #[arg(
        long,
        hide = true,
        global = true,
        value_name = "SECONDS",
        default_value_t = cuda::DEVICE_TIMEOUT.as_secs() as u32,
        value_parser = count_u32::<1>,
    )]
    device_timeout: u32,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
}

fn preemption(name: &str) -> Result<Preemption, String> {
    match name {
        "auto" => Ok(Preemption::Auto),
        "swap" => Ok(Preemption::Swap),
        "recompute" => Ok(Preemption::Recompute),
        _ => Err("choose auto, swap or recompute".into()),
    }
}

fn order(name: &str) -> Result<OrderChoice, String> {
    match name {
        "fixed" => Ok(OrderChoice::Fixed),
        "free" => Ok(OrderChoice::Free),
        _ => Err("choose fixed or free".into()),
    }
}

/// Parses a context length: a prompt and an answer of one token at least.
pub(crate) fn context(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(tokens) if tokens >= 2 => Ok(tokens),
        _ => Err("expected a number of at least 2".into()),
    }
}

/// A number of tokens up to the scheduler's bound.
fn refresh(text: &str) -> Result<u32, String> {
    count::<{ MAX_CONTEXT as usize }>(text).map(|tokens| tokens as u32)
}

/// Share of a minute's tokens above which recomputed ones brake evictions.
const MAX_RECOMPUTE: f32 = 0.5;

impl EngineArgs {
    /// Bounds of the scheduler; its sizes follow from other options.
    pub(crate) fn scheduler_bounds(&self) -> SchedulerConfig {
        let default = SchedulerConfig::default();
        SchedulerConfig {
            max_skipped_steps: self.max_passed_over.unwrap_or(default.max_skipped_steps),
            max_barrier_steps: self.max_blocked.unwrap_or(default.max_barrier_steps),
            reserve: match self.reserve {
                Growth::Present => Reserve::None,
                Growth::Mean => Reserve::Mean,
                Growth::P90 => Reserve::P90,
            },
            max_recompute: if self.ranking.paper { default.max_recompute } else { MAX_RECOMPUTE },
            refresh_tokens: self.refresh_tokens.unwrap_or(default.refresh_tokens),
            ..default
        }
    }

    /// `max_requests`, or the number of sequences in a step if that is larger.
    pub(crate) fn room_for(&self, max_requests: usize) -> usize {
        max_requests.max(self.max_running.unwrap_or(self.device.resolve().default_max_running()))
    }

    /// `default` with the sizes and bounds that the options name, for a simulation of up to
    /// `max_requests` requests.
    pub fn simulated(&self, default: SchedulerConfig, max_requests: usize) -> SchedulerConfig {
        let bounds = self.scheduler_bounds();
        let or = |option: Option<usize>, default| option.map_or(default, |n| n as u32);
        let max_running = or(self.max_running, default.max_running);
        SchedulerConfig {
            max_running,
            max_requests: max_running.max(max_requests.min(MAX_REQUESTS) as u32),
            // A decode is never short of a row.
            token_budget: or(self.token_budget, default.token_budget.max(max_running)),
            num_blocks: or(self.kv_blocks, default.num_blocks),
            max_skipped_steps: bounds.max_skipped_steps,
            max_barrier_steps: bounds.max_barrier_steps,
            reserve: bounds.reserve,
            max_recompute: bounds.max_recompute,
            refresh_tokens: bounds.refresh_tokens,
            preemption: self.preemption,
            ..default
        }
    }

    /// The same with a pool of `blocks` KV blocks.
    pub fn with_kv_blocks(&self, blocks: usize) -> EngineArgs {
        EngineArgs { kv_blocks: Some(blocks), ..self.clone() }
    }

    /// True if a draft model of one model is named.
    pub fn names_draft(&self) -> bool {
        matches!(self.speculate, SpeculateArg::Draft(_))
    }

    /// KV blocks, if they are named.
    pub fn kv_blocks(&self) -> Option<usize> {
        self.kv_blocks
    }

    /// The bound on the gap that prefill causes; `default` unless it is named.
    pub fn max_gap(&self, default: Duration) -> Duration {
        self.max_gap_ms.map_or(default, |ms| Duration::from_millis(ms.into()))
    }

    /// Share of the first predicted length in which a request can be preempted.
    pub fn c(&self) -> f32 {
        self.ranking.c.unwrap_or(DEFAULT_C)
    }

    /// Treatment of a request beyond `--max-requests`.
    pub(crate) fn when_full(&self) -> WhenFull {
        match self.full {
            Full::Reject => WhenFull::Reject,
            Full::Shed => WhenFull::Shed,
        }
    }

    /// The same for a run in which only the throughput counts: more sequences in a step on the CPU,
    /// unless their number is named. Each token has a step, and thus a prediction.
    pub fn for_throughput(&self) -> EngineArgs {
        let is_cpu = self.device() == ComputeDevice::Cpu;
        let max_running = self.max_running.or(is_cpu.then_some(THROUGHPUT_RUNNING));
        EngineArgs { max_running, speculate: SpeculateArg::Off, ..self.clone() }
    }

    /// The same without shared KV blocks.
    pub fn without_prefix_cache(&self) -> EngineArgs {
        EngineArgs { no_prefix_cache: true, ..self.clone() }
    }

    /// True if requests that begin alike share KV blocks.
    pub fn shares_prefixes(&self) -> bool {
        !self.no_prefix_cache
    }

    /// Threads of the forward pass.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(trail_platform::available_threads)
    }

    /// Most requests, running and waiting.
    pub fn max_requests(&self) -> usize {
        self.max_requests
    }

    /// Options of a policy and of its rank.
    pub fn ranking(&self) -> RankingArgs {
        self.ranking
    }

    /// The policy requested; TRAIL by default.
    pub fn policy_or_trail(&self) -> PolicyKind {
        self.with_options(self.policy.unwrap_or(PolicyKind::trail(DEFAULT_C)))
    }

    /// The policy requested, or else `policy` with the options of the rank.
    pub fn policy_or(&self, policy: PolicyKind) -> PolicyKind {
        self.with_options(self.policy.unwrap_or(policy))
    }

    /// The device on this machine.
    pub fn device(&self) -> ComputeDevice {
        self.device.resolve()
    }

    /// Settings of a CUDA device.
    pub fn cuda(&self) -> CudaSettings {
        CudaSettings {
            graphs: !self.no_graphs,
            order: self.order,
            megakernel: self.megakernel,
            probe: self.probe_device,
            host_kv_bytes: self.host_kv_gib << 30,
            device_timeout: Duration::from_secs(self.device_timeout.into()),
            ..CudaSettings::default()
        }
    }

    /// Options of the CPU backend.
    pub fn cpu(&self) -> CpuArgs {
        self.cpu
    }

    /// Says which of the given options `policy` does not have.
    pub(crate) fn warn_of_idle_options(&self, policy: PolicyKind) {
        self.ranking.warn_of_idle_options(policy);
    }

    /// `policy` with the options of [`RankingArgs`].
    pub fn with_options(&self, policy: PolicyKind) -> PolicyKind {
        self.ranking.apply(policy)
    }
}
