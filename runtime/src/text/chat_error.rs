//! Errors of chat templates.

use std::fmt;

use trail_platform::quote::escape;

use super::tokenizer::EncodeError;

/// Errors from rendering or encoding a chat.
#[derive(Debug)]
pub enum ChatError {
    /// The model has no chat template.
    NoTemplate,
    /// The model's chat template cannot be compiled.
    Broken(String),
    /// The template raised an exception, or failed.
    Render(String),
    /// The template used more than a prompt can need.
    Exceeds {
        /// The file that has the template.
        template: String,
        /// The limit.
        limit: String,
    },
    /// The rendered text does not have the final message, which was to be continued.
    NotContinued,
    /// The rendered text cannot be encoded.
    Encode(EncodeError),
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChatError::NoTemplate => f.write_str(
                "the model has no chat template: send a plain prompt to /v1/completions instead",
            ),
            ChatError::Broken(reason) => write!(
                f,
                "the model's chat template cannot be used: {}: send a plain prompt to \
                 /v1/completions instead",
                escape(reason)
            ),
            // The template's own words.
            ChatError::Render(reason) => write!(f, "the chat template failed: {}", escape(reason)),
            ChatError::Exceeds { template, limit } => write!(
                f,
                "the chat template of {template} uses more than {limit}: send fewer or shorter \
                 messages, or correct the template"
            ),
            ChatError::NotContinued => f.write_str(
                "the chat template changes the final message, so that it cannot be continued",
            ),
            ChatError::Encode(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ChatError {}
