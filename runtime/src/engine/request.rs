//! What a caller asks for.

use std::sync::Arc;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise logits are divided by it before the softmax.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token already generated; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from the logit of each token already generated; 0 is off.
    pub frequency_penalty: f32,
    /// Key of the request's randomness: token at position p depends on (seed, p) alone.
    pub seed: u64,
    /// How many of the most likely tokens to report beside each chosen one; at most [`crate::engine::MAX_TOP_LOGPROBS`].
    pub top_logprobs: u8,
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
            seed: 0,
            top_logprobs: 0,
        }
    }
}

/// One generation request, in tokens.
#[derive(Clone)]
pub struct Request {
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; at least one.
    pub max_tokens: u32,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Tokens that end the answer, beside the model's own end-of-sequence tokens.
    pub stop_tokens: Vec<u32>,
    /// Go on past the model's end-of-sequence tokens; `stop_tokens` still count.
    pub ignore_eos: bool,
    /// End after exactly this many tokens, whatever they are; at most `max_tokens`. Unlike that, the policies do not know of it
    /// (for experiments).
    pub forced_length: Option<u32>,
    /// The true output length in tokens, where a recorded run knows it (for the `oracle` policy).
    pub true_length: Option<u32>,
    /// Predictions to replay instead of the probe's: expected remaining tokens by tokens generated (for experiments).
    pub predictions: Option<Arc<[f32]>>,
    /// The prompt-only prediction of the output's tokens to replay instead of the predictor's.
    pub initial_prediction: Option<f32>,
    /// Called after every event, from the engine's thread: must not block.
    pub notify: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Request {
    /// A request for up to `max_tokens` tokens after `prompt`, with default sampling.
    pub fn new(prompt: Vec<u32>, max_tokens: u32) -> Self {
        Request {
            prompt,
            max_tokens,
            sampling: SamplingParams::default(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            forced_length: None,
            true_length: None,
            predictions: None,
            initial_prediction: None,
            notify: None,
        }
    }
}
