//! Sampling parameters of a request.

/// Most entries of [`SamplingParams::logit_bias`].
pub const MAX_LOGIT_BIAS: usize = 1024;

/// Parameters of sampling, one set per request.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before the softmax; 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token already generated; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of each token already generated; 0 is off.
    pub frequency_penalty: f32,
    /// Token ids, each once and in the vocabulary, with what is added to their logits: at most
    /// [`MAX_LOGIT_BIAS`].
    pub logit_bias: Vec<(u32, f32)>,
    /// Random key of the request: the token at position p depends on (seed, p) and the logits
    /// alone.
    pub seed: u64,
    /// Number of most likely tokens to report beside each sampled one; at most
    /// [`super::MAX_TOP_LOGPROBS`].
    pub top_logprobs: u8,
    /// Number of most likely tokens to report beside each token of the prompt but the first, with
    /// its own log-probability; at most [`super::MAX_TOP_LOGPROBS`]. `None`: the prompt's tokens
    /// are not reported.
    pub prompt_logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            top_logprobs: 0,
            prompt_logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Returns true if a penalty is in effect, so that the request's token history matters.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}
