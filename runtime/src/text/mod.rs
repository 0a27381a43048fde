//! Tokenizer, incremental detokenization, stop strings and chat templates.

mod allowance;
mod breaks;
mod calendar;
mod charges;
pub mod chat;
mod json_syntax;
mod metering;
mod python_json;
mod stop;
mod stream;
mod text_bound;
mod token_bytes;
pub mod tokenizer;

pub use chat::{ChatError, ChatMessage, ChatOptions, ChatTemplate, RenderedChat};
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Step, StopMatcher};
pub use stream::{Decode, TextStream};
pub use tokenizer::{EncodeError, Tokenizer};
