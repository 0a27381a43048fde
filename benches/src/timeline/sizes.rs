//! Sizes of a timeline's workload.

use trail_runtime::backend::BLOCK_TOKENS;

use crate::decoding::StepShape;

/// Recorded steps.
pub const STEPS: usize = 16;
/// Decode-only steps before the recorded ones.
pub const WARM_UP: usize = 8;
/// Waiting requests for each running one.
const WAITING: usize = 2;
/// Rows of a step beyond two per request, for prompts.
const MORE_ROWS: usize = 256;

/// Sizes of the engine and of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Requests that decode.
    pub batch: usize,
    /// Tokens of each prompt.
    pub context: usize,
    /// Most rows of a step.
    pub rows: usize,
}

impl Sizes {
    /// The sizes for requests of `shape`.
    pub fn new(StepShape { batch, context }: StepShape) -> Sizes {
        Sizes { batch, context, rows: 2 * batch + MORE_ROWS }
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        WAITING * self.batch
    }

    /// Number of requests, running and waiting.
    pub fn requests(&self) -> usize {
        self.batch + self.waiting()
    }

    /// Upper bound of the steps until all prompts are prefilled: decodes leave the other rows.
    pub fn prefills(&self) -> usize {
        (self.batch * self.context).div_ceil(self.rows - self.batch) + 1
    }

    /// Longest context, tokens.
    pub fn longest(&self) -> usize {
        self.context + self.prefills() + WARM_UP + STEPS + 4
    }

    /// KV blocks of the running requests at their longest.
    pub fn blocks(&self) -> usize {
        self.batch * self.longest().div_ceil(BLOCK_TOKENS)
    }
}
