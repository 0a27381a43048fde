//! The options of `trail-rt chat`.

use clap::Args;

use crate::commands::sampling_args::SamplingArgs;

/// Options of `trail-rt chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    /// The system message; /system changes it
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Options of sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Treat special tokens in the messages as control tokens, not as text
    #[arg(long)]
    pub allow_special_tokens: bool,
}
