//! The form of an answer, as a client writes it.

use std::fmt;

use serde_json::Value;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSpec {
    /// A JSON value of this JSON Schema (draft 2020-12 and older).
    JsonSchema {
        /// The schema.
        schema: Value,
        /// True: no whitespace between the parts of the JSON.
        compact: bool,
    },
    /// One of these texts; at least one.
    Choice(Vec<String>),
    /// A text that this regular expression (syntax of Rust's regex crate) matches as a whole.
    Regex(String),
    /// A text of this grammar, in Lark's syntax as llguidance reads it.
    Lark(String),
    /// A text of this grammar, in llama.cpp's GBNF.
    Gbnf(String),
}

impl GrammarSpec {
    /// A grammar in Lark or GBNF, which is known by its `::=`.
    pub fn grammar(text: String) -> GrammarSpec {
        match text.contains("::=") {
            true => GrammarSpec::Gbnf(text),
            false => GrammarSpec::Lark(text),
        }
    }

    /// Any JSON object.
    pub fn json_object() -> GrammarSpec {
        GrammarSpec::JsonSchema { schema: serde_json::json!({"type": "object"}), compact: false }
    }
}

/// A specification that cannot be served: one line that names what is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError(pub(crate) String);

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GrammarError {}
