//! How much a timeline's requests are, and for how long they decode.

use trail_runtime::batch::BLOCK_TOKENS;

/// Steps that are recorded.
pub const STEPS: usize = 16;
/// Steps of nothing but decodes before these.
pub const WARM_UP: usize = 8;
/// Requests that wait for each that runs.
const WAITING: usize = 2;
/// Rows of a step beyond two for each request, so that prompts get on.
const MORE_ROWS: usize = 256;

/// How much there is to do.
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
    /// For `batch` requests with prompts of `context` tokens.
    pub fn new(batch: usize, context: usize) -> Sizes {
        Sizes { batch, context, rows: 2 * batch + MORE_ROWS }
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        WAITING * self.batch
    }

    /// All of them.
    pub fn requests(&self) -> usize {
        self.batch + self.waiting()
    }

    /// Most steps until all prompts are in: each takes in what the decodes leave of the rows.
    pub fn prefills(&self) -> usize {
        (self.batch * self.context).div_ceil(self.rows - self.batch) + 1
    }

    /// Longest context, tokens.
    pub fn longest(&self) -> usize {
        self.context + self.prefills() + WARM_UP + STEPS + 2
    }

    /// KV blocks.
    pub fn blocks(&self) -> usize {
        self.batch * self.longest().div_ceil(BLOCK_TOKENS)
    }
}
