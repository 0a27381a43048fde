//! Tokenizer, incremental detokenization, stop strings and chat templates.

mod allowance;
mod bounds;
mod breaks;
mod calendar;
#[cfg(feature = "template-metering")]
mod charges;
pub mod chat;
mod chat_error;
mod deep_stack;
mod dry_run;
mod environment;
mod gguf;
mod jinja_builtins;
mod jinja_globals;
mod json_syntax;
#[cfg(feature = "template-metering")]
mod metering;
mod ordered_json;
mod python_json;
mod python_methods;
mod python_text;
mod scored_merges;
mod stop;
mod stream;
#[cfg(feature = "template-metering")]
mod template_check;
mod template_file;
mod text_bound;
mod text_growth;
mod token_bytes;
mod token_model;
pub mod tokenizer;

pub use chat::{ChatMessage, ChatOptions, ChatTemplate, RenderedChat};
pub use chat_error::ChatError;
pub use dry_run::CallForm;
pub use ordered_json::{OrderedJson, OrderedMembers};
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Step, StopMatcher};
pub use stream::{Decode, TextStream};
pub use tokenizer::{EncodeError, Tokenizer};
