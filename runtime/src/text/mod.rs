//! Text to tokens and back, and conversations to text.

mod calendar;
pub mod chat;
mod python_json;
pub mod tokenizer;

pub use chat::{ChatError, ChatMessage, ChatTemplate};
pub use tokenizer::{EncodeError, Tokenizer};
