//! Reasons for refusing a request at submission, with advice for its sender.

use std::fmt;

/// Reason for refusing a request. Every request that is admitted finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Every index is taken.
    Full {
        /// Number of indices.
        max_requests: u32,
    },
    /// Prompt and output together need more KV blocks than the cache has.
    NeverFits {
        /// Blocks the request needs at its full length.
        needed_blocks: u32,
        /// Blocks of the cache.
        num_blocks: u32,
    },
    /// Prompt and output together are longer than the context.
    ContextTooLong {
        /// `prompt_tokens + max_tokens`.
        needed_tokens: u64,
        /// Tokens the context holds.
        max_context: u32,
    },
    /// The prompt has no tokens.
    EmptyPrompt,
    /// `max_tokens` is 0.
    ZeroMaxTokens,
    /// A moved request had its whole answer before.
    Complete {
        /// Tokens generated before.
        generated: u32,
        /// The request's `max_tokens`.
        max_tokens: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { max_requests } => {
                write!(f, "the limit of {max_requests} requests is reached: retry later")
            }
            Self::NeverFits { needed_blocks, num_blocks } => write!(
                f,
                "the request needs {needed_blocks} KV blocks, the cache has {num_blocks}: \
                 lower max_tokens, shorten the prompt, or enlarge the cache"
            ),
            Self::ContextTooLong { needed_tokens, max_context } => write!(
                f,
                "prompt plus max_tokens is {needed_tokens} tokens, the context holds \
                 {max_context}: shorten the prompt or lower max_tokens"
            ),
            Self::EmptyPrompt => write!(f, "the prompt is empty: send at least one token"),
            Self::ZeroMaxTokens => write!(f, "max_tokens is 0: ask for at least one token"),
            Self::Complete { generated, max_tokens } => write!(
                f,
                "{generated} tokens are generated already, max_tokens is {max_tokens}: the answer \
                 is complete"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
