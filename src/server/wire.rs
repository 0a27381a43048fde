//! OpenAI's answer objects, as far as both endpoints share them.

use serde::Serialize;

/// An answer, or a piece of one.
#[derive(Serialize, Clone, Debug)]
pub struct Envelope<C> {
    /// The same for all pieces of an answer.
    pub id: String,
    /// What kind of object this is.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The answers.
    pub choices: Vec<C>,
    /// What was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Tokens of a request.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompts.
    pub prompt_tokens: u64,
    /// Generated, the ones that ended answers included.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
}

impl Usage {
    /// Before anything is generated.
    pub fn of_prompts(prompts: &[Vec<u32>]) -> Self {
        let tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
        Usage { prompt_tokens: tokens, completion_tokens: 0, total_tokens: tokens }
    }

    /// Counts generated tokens.
    pub fn add(&mut self, tokens: u32) {
        self.completion_tokens += u64::from(tokens);
        self.total_tokens += u64::from(tokens);
    }
}
