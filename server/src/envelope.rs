//! Response objects that both of OpenAI's endpoints share.

use serde::Serialize;
use utoipa::ToSchema;

use crate::delta::Delta;
use crate::live::Progress;
use crate::prompt_scores::PromptLogprobs;

/// A response, or a chunk of a streamed one.
#[derive(Serialize, ToSchema, Clone, Debug)]
pub(crate) struct Envelope<'a, C> {
    /// Response id, the same in all chunks.
    pub id: &'a str,
    /// Object type, such as `chat.completion`.
    pub object: &'static str,
    /// Creation time, seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// Model and program that answer: with the same one, seeds give the same answers.
    pub system_fingerprint: &'a str,
    /// Choices of the response, or of this chunk.
    pub choices: Vec<C>,
    /// Report of the prompt that all choices have.
    #[serde(flatten)]
    pub prompt: SharedPrompt,
    /// Expectation of the rest of the chunk's answer, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trail: Option<Progress>,
    /// Token counts, where the endpoint reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A prompt that all choices have.
#[derive(Serialize, ToSchema, Clone, Debug, Default)]
pub(crate) struct SharedPrompt {
    /// Its token ids, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Its tokens with their log-probabilities, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Value>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Token counts of a request.
#[derive(Serialize, ToSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Generated tokens, including stop and EOS tokens.
    pub completion_tokens: u64,
    /// Sum of both.
    pub total_tokens: u64,
    pub prompt_tokens_details: PromptTokens,
    pub completion_tokens_details: CompletionTokens,
}

/// Parts of the prompts' tokens.
#[derive(Serialize, ToSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PromptTokens {
    /// Tokens whose KV another request had computed.
    pub cached_tokens: u64,
}

/// Parts of the answers' tokens.
#[derive(Serialize, ToSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletionTokens {
    /// Accepted draft tokens.
    pub accepted_prediction_tokens: u64,
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Counts before the first generated token.
    pub(crate) fn of_prompts(prompts: &[Vec<u32>]) -> Self {
        let tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
        Usage { prompt_tokens: tokens, total_tokens: tokens, ..Usage::default() }
    }

    /// Adds the tokens of an answer or of a piece of one.
    pub(crate) fn add(&mut self, delta: &Delta) {
        self.completion_tokens += u64::from(delta.tokens);
        self.total_tokens += u64::from(delta.tokens);
        self.prompt_tokens_details.cached_tokens += u64::from(delta.cached_tokens);
        self.completion_tokens_details.accepted_prediction_tokens +=
            u64::from(delta.accepted_tokens);
        self.completion_tokens_details.reasoning_tokens += u64::from(delta.reasoning_tokens);
    }
}
