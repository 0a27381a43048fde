//! One sampled token.

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
