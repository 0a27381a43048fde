//! The options of `trail-rt inspect`.

use std::path::PathBuf;

use clap::Args;
use trail_cli::count;

/// Most sequences of an estimate.
const MAX_BATCH: usize = 1 << 20;
/// Most tokens of an estimate; the model's context is checked once it is known.
const MAX_CONTEXT: usize = 1 << 28;

/// Options of `trail-rt inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// A model's folder or file, or `hf:OWNER/NAME[:FILE]` [default: that of --model]
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Sequences in the estimate of the memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<MAX_BATCH>)]
    pub batch: usize,
    /// Tokens of each of these sequences [default: the model's context]
    #[arg(long, value_name = "N", value_parser = count::<MAX_CONTEXT>)]
    pub context: Option<usize>,
}
