//! One sampled token, and the fault of a row that has none.

use std::error::Error;
use std::fmt;

/// Most alternatives that can be reported beside a sampled token (OpenAI's limit).
pub const MAX_TOP_LOGPROBS: usize = 20;

/// One sampled token with its log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// Token id.
    pub id: u32,
    /// Natural-log probability under the model: before penalties, temperature and truncation.
    pub logprob: f32,
    /// The most likely tokens and their log-probabilities, best first; the first `num_top` are
    /// valid.
    pub top: [(u32, f32); MAX_TOP_LOGPROBS],
    /// Valid entries of `top`.
    pub num_top: u8,
}

/// A token of a prompt with its log-probabilities: of itself and of the most likely tokens at its
/// position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredToken {
    /// The token.
    pub token: SampledToken,
    /// Its rank among all tokens, 1 for the most likely one; of equally likely ones the lower id is
    /// first.
    pub rank: u32,
}

/// Result of scoring the token after one row.
pub type Scored = Result<ScoredToken, NonFiniteLogits>;

/// Result of sampling one row.
pub type Sampled = Result<SampledToken, NonFiniteLogits>;

/// The logits of a row hold NaN or plus infinity, or are all minus infinity: no token can be
/// sampled from them. A fault of the row's request alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonFiniteLogits;

impl fmt::Display for NonFiniteLogits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("logits are not finite: the weights are damaged or overflowed")
    }
}

impl Error for NonFiniteLogits {}
