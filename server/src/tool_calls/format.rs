//! The formats in which models write calls of tools.

use std::fmt;
use std::str::FromStr;

use super::{Cursor, Found, Place, harmony, hermes, llama3_json, mistral, pythonic};
use crate::{format_names, harmony as channels};

/// The form in which a model writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SmolLM3.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`: Llama 3.
    Llama3Json,
    /// `[f(a=1), g()]`: Llama 3.2 and 4.
    Pythonic,
    /// `[TOOL_CALLS]`: Mistral.
    Mistral,
    /// Messages to functions, in channels: gpt-oss.
    Harmony,
    /// Calls stay text.
    Text,
}

/// The formats by the names that vLLM has.
const NAMES: [(&str, ToolFormat); 6] = [
    ("hermes", ToolFormat::Hermes),
    ("llama3_json", ToolFormat::Llama3Json),
    ("pythonic", ToolFormat::Pythonic),
    ("mistral", ToolFormat::Mistral),
    ("openai", ToolFormat::Harmony),
    ("none", ToolFormat::Text),
];

impl ToolFormat {
    /// The format that a chat template shows or explains, if it is one of these.
    pub(crate) fn of_template(source: &str) -> Option<ToolFormat> {
        let has = |text: &str| source.contains(text);
        if has("[TOOL_CALLS]") {
            Some(ToolFormat::Mistral)
        } else if has("<|channel|>") {
            Some(ToolFormat::Harmony)
        } else if has("<tool_call>") {
            // Qwen3-Coder writes XML between the same tags.
            (!has("<function=")).then_some(ToolFormat::Hermes)
        } else if has("<|python_tag|>") || has("\"parameters\": dictionary of argument name") {
            Some(ToolFormat::Llama3Json)
        } else if has("[func_name1(") {
            Some(ToolFormat::Pythonic)
        } else {
            None
        }
    }

    /// Special tokens that are part of a call, and so of the text in which calls are sought.
    pub(crate) fn tokens(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &["<tool_call>", "</tool_call>"],
            ToolFormat::Llama3Json => &["<|python_tag|>"],
            ToolFormat::Mistral => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
            ToolFormat::Harmony => &channels::TOKENS,
            ToolFormat::Pythonic | ToolFormat::Text => &[],
        }
    }

    /// The kind of the first bytes of `text`, in `place`; no text follows if it `is_ended`. `names`
    /// are those of the tools.
    pub(super) fn find(self, text: &str, place: Place, is_ended: bool, names: &[String]) -> Found {
        let cursor = Cursor::new(text, is_ended, names);
        match self {
            ToolFormat::Hermes => hermes::find(cursor, place),
            ToolFormat::Llama3Json => llama3_json::find(cursor, place),
            ToolFormat::Pythonic => pythonic::find(cursor, place),
            ToolFormat::Mistral => mistral::find(cursor, place),
            ToolFormat::Harmony => harmony::find(cursor, place),
            ToolFormat::Text => Found::Text(text.len()),
        }
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format_names::name(&NAMES, self))
    }
}

impl FromStr for ToolFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        format_names::find(&NAMES, name)
    }
}
