//! Tokenizer, incremental detokenization, stop strings and chat templates.

mod calendar;
pub mod chat;
mod python_json;
mod stop;
mod stream;
mod text_bound;
pub mod tokenizer;

pub use chat::{ChatError, ChatMessage, ChatTemplate};
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Step, StopMatcher};
pub use stream::{Decode, TextStream};
pub use tokenizer::{EncodeError, Tokenizer};
