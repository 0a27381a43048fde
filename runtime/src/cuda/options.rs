//! Options of the CUDA backend.

use std::sync::Arc;
use std::time::Duration;

use trail_probe::Weights;

use super::plan::order::OrderChoice;
use super::step::StepLimits;
use super::tap::TapMode;

/// Configuration of a CUDA backend.
#[derive(Clone)]
pub struct CudaOptions {
    /// The device's number.
    pub ordinal: usize,
    /// Most rows (tokens) of a batch.
    pub max_rows: usize,
    /// Most segments of a batch.
    pub max_segments: usize,
    /// Most requests in the engine: request indices are below it.
    pub max_requests: usize,
    /// Longest context, tokens.
    pub max_context: usize,
    /// KV blocks; `None`: as many as there is room for.
    pub kv_blocks: Option<usize>,
    /// Pinned host memory for swapped KV blocks, bytes; 0: none.
    pub host_kv_bytes: usize,
    /// Replay captured graphs for decode steps.
    pub graphs: bool,
    /// Orders of summing to choose from.
    pub order: OrderChoice,
    /// Run all layers of a step of up to 4 decode rows in one launch (megakernel), with the same
    /// bits.
    pub megakernel: bool,
    /// The layer (0-based) whose output rows are tapped; `None`: no tap.
    pub tap_layer: Option<usize>,
    /// Destination of tapped rows.
    pub tap: TapMode,
    /// The probe's weights, for [`TapMode::Gpu`].
    pub probe: Option<Arc<Weights>>,
    /// Threads that wait for tapped rows and predict from them.
    pub probe_threads: usize,
    /// True if requests share KV blocks: then the sums of tapped activations are made for each
    /// block, of prompts and outputs.
    pub shares_blocks: bool,
    /// Most draft tokens of a batch: each has a row of logits and token counts.
    pub max_drafts: usize,
    /// Longest wait for the device: one that finishes no step in this time hangs.
    pub device_timeout: Duration,
    /// Compare each swapped block's checksum when it comes back.
    pub checksums: bool,
}

impl CudaOptions {
    /// Limits of a step.
    pub(super) fn limits(&self) -> StepLimits {
        StepLimits {
            rows: self.max_rows,
            segments: self.max_segments,
            drafts: self.max_drafts,
            requests: self.max_requests,
            context: self.max_context,
        }
    }
}
