//! The prompts of a request.

use crate::answer_form::AnswerForm;

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
    pub echo: Vec<String>,
    /// Parts of the answers beside content.
    pub form: AnswerForm,
    /// The grammar (Lark) of the calls that the answers must have; `None` if they need none.
    pub forced_calls: Option<String>,
}
