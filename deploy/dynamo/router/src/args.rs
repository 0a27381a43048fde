//! Command line of the router.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Dynamo's name of the time that its HTTP service gives open streams.
pub const HTTP_DRAIN: &str = "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS";

/// An OpenAI-compatible front end for trail-rt's workers, on NVIDIA Dynamo.
#[derive(Parser, Clone, Debug)]
#[command(name = "trail-dynamo-router", version)]
pub struct Args {
    /// Address to serve on; :0 takes a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub http: SocketAddr,
    /// Choice of the worker
    #[arg(long, value_enum, default_value_t = Policy::PredictedWait)]
    pub policy: Policy,
    /// Choose by predicted waiting time alone, whatever of a prompt the workers' prefix caches have
    #[arg(long)]
    pub ignore_caches: bool,
    /// Look only at the better of two workers drawn at random: for several routers, which do not
    /// see each other's bookings
    #[arg(long)]
    pub two_choices: bool,
    /// Predict each answer's length from its prompt by the predictor beside this model, which the
    /// workers serve [default: the client's nvext.agent_hints.osl, or the mean of all]
    #[arg(long, value_name = "MODEL")]
    pub predict_with: Option<PathBuf>,
    /// Times a request may move to another worker; 0 loses the requests of a worker that dies
    #[arg(long, value_name = "TIMES", default_value_t = 3)]
    pub migration_limit: u32,
    /// Seconds of silence after which a worker is left; 0 waits without bound
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pub hang_timeout: u32,
    /// Longest body of a request
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub max_body: usize,
    /// Seconds that open streams have to end after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = HTTP_DRAIN)]
    pub drain_seconds: u32,
    /// Dynamo namespace of the workers
    #[arg(long, value_name = "NAME", default_value = "dynamo", env = "DYN_NAMESPACE")]
    pub namespace: String,
}

impl Args {
    /// True if the choice needs the workers' KV events.
    pub fn counts_caches(&self) -> bool {
        match self.policy {
            Policy::PredictedWait => !self.ignore_caches,
            Policy::Kv => true,
            Policy::LeastWork | Policy::LeastLoaded | Policy::RoundRobin => false,
        }
    }
}

/// Values of `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// The worker where the first token comes soonest, by the workers' predictions and the prefill
    /// that their prefix caches save
    PredictedWait,
    /// The worker with the least predicted remaining tokens
    LeastWork,
    /// By the blocks to prefill and those in use, as Dynamo's KV router does (Dynamo's own)
    Kv,
    /// The worker with the fewest requests (Dynamo's own)
    LeastLoaded,
    /// One after another (Dynamo's own)
    RoundRobin,
}
