//! Calls of tools in the text of an answer.
//!
//! A format is a function that says what the next bytes of a text are ([`Found`]); its answer
//! depends on these bytes alone, so that [`ToolParser`] finds the same in a text however it is
//! divided into deltas.

mod cursor;
mod forced;
mod format;
mod harmony;
mod hermes;
mod keyword_rules;
mod llama3_json;
mod mistral;
mod parser;
mod python_literal;
mod pythonic;

pub(crate) use forced::forced;
pub use format::ToolFormat;
pub(crate) use parser::{Part, ToolParser};

use cursor::{Cursor, Stop};

/// Where in an answer a text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the answer's beginning.
    Start,
    /// Behind other text.
    Text,
    /// Behind a call.
    Call,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    name: String,
    /// Text of a JSON object.
    arguments: String,
}

/// A call whose arguments have begun.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    name: String,
    /// Byte at which the arguments begin.
    arguments: usize,
    /// Texts that may come behind the arguments, each with white space before it.
    tail: &'static [&'static str],
}

/// The first bytes of a text, by a format.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// So many are content.
    Text(usize),
    /// So many separate calls.
    Separator(usize),
    /// The text decides when it is longer. It may be a call that has begun.
    Open(Option<Head>),
    /// Calls, and the number of their bytes.
    Calls(Vec<Call>, usize),
}

impl Found {
    /// The finding of a format that has `read` from `cursor`. Without a call the first `no_call`
    /// bytes are content.
    fn new(read: Result<Vec<Call>, Stop>, cursor: &mut Cursor, no_call: usize) -> Found {
        match read {
            Ok(calls) => Found::Calls(calls, cursor.at()),
            Err(Stop::More) if !cursor.is_ended() => Found::Open(cursor.take_head()),
            Err(_) => Found::Text(no_call),
        }
    }

    /// The text before `marker`; `None` if `text` begins with it.
    fn before(text: &str, marker: &str, is_ended: bool) -> Option<Found> {
        if let Some(at) = text.find(marker) {
            return (at > 0).then_some(Found::Text(at));
        }
        let begun = (1..marker.len()).rev().find(|&bytes| text.ends_with(&marker[..bytes]));
        match text.len() - begun.filter(|_| !is_ended).unwrap_or(0) {
            0 if !is_ended => Some(Found::Open(None)),
            bytes => Some(Found::Text(bytes)),
        }
    }
}

#[cfg(test)]
mod tests;
