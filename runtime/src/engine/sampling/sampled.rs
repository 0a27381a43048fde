//! What the sampler chose.

/// Most alternatives that can be reported beside a chosen token (OpenAI's limit).
pub const MAX_TOP_LOGPROBS: usize = 20;

/// One chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Natural-log probability of the token under the model (before penalties, temperature and truncation).
    pub logprob: f32,
    /// The most likely tokens and their log-probabilities, best first; the first `num_top` are valid.
    pub top: [(u32, f32); MAX_TOP_LOGPROBS],
    /// Valid entries of `top`.
    pub num_top: u8,
}
