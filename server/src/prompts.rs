//! The prompts of a request.

use crate::answer_parts::AnswerParts;
use crate::echo::Echo;

/// Prompts, and the options that each endpoint spells in its own way.
pub(crate) struct Prompts {
    /// Token ids of each prompt.
    pub ids: Vec<Vec<u32>>,
    /// Token ids of a text that the answers are expected to repeat in part; empty for none.
    pub expected: Vec<u32>,
    /// Name of the request field that holds the prompts, for error messages.
    pub field: &'static str,
    /// Default of `max_tokens`; `None` for the rest of the context.
    pub default_max_tokens: Option<u32>,
    /// Log-probabilities per position: `None` for none, else the number of most likely tokens.
    pub top_logprobs: Option<u8>,
    /// Name of the request field that holds their number, for error messages.
    pub top_logprobs_field: &'static str,
    /// Text before each answer, one per prompt; empty for none.
    pub echo: Vec<Echo>,
    /// vLLM's report of each prompt's tokens: `None` for none, else the number of most likely
    /// tokens.
    pub prompt_logprobs: Option<u8>,
    /// True if each answer reports its prompt, and not the first alone.
    pub each_reports: bool,
    /// Parts of the answers beside content.
    pub parts: AnswerParts,
    /// The grammar (Lark) of the calls that the answers must have; `None` if they need none.
    pub forced_calls: Option<String>,
}

impl Prompts {
    /// Most likely tokens beside each token of an echo; `None`: its tokens are not reported.
    pub(crate) fn echo_top(&self) -> Option<u8> {
        self.top_logprobs.filter(|_| !self.echo.is_empty())
    }

    /// Most likely tokens that the engine reports beside each token of a prompt; `None`: it reports
    /// no prompt.
    pub(crate) fn scored_top(&self) -> Option<u8> {
        self.prompt_logprobs.max(self.echo_top())
    }

    /// True if something of the prompts is reported, so that an answer may have no tokens.
    pub(crate) fn are_reported(&self) -> bool {
        !self.echo.is_empty() || self.prompt_logprobs.is_some()
    }
}
