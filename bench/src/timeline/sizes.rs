//! Sizes of a timeline's workload.

use trail_runtime::batch::BLOCK_TOKENS;

/// Recorded steps.
pub const STEPS: usize = 16;
/// Decode steps before the recording.
pub const WARM_UP: usize = 8;
/// Waiting requests for each running one.
const WAITING: usize = 2;
/// Rows of a step beyond two for each request: room for prefill chunks.
const MORE_ROWS: usize = 256;

/// Requests, prompt lengths and step sizes of the workload.
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
    /// The sizes for `batch` requests with prompts of `context` tokens.
    pub fn new(batch: usize, context: usize) -> Sizes {
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

    /// Steps until all prompts are prefilled, at most: each prefills the rows that decodes leave.
    pub fn prefills(&self) -> usize {
        (self.batch * self.context).div_ceil(self.rows - self.batch) + 1
    }

    /// Longest context, tokens.
    pub fn longest(&self) -> usize {
        self.context + self.prefills() + WARM_UP + STEPS + 2
    }

    /// KV blocks of the running requests at their longest.
    pub fn blocks(&self) -> usize {
        self.batch * self.longest().div_ceil(BLOCK_TOKENS)
    }
}
