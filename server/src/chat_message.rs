//! A message of a conversation, as requests spell it.

use serde::{Deserialize, Deserializer};
use trail_runtime::text::{ChatMessage, OrderedJson, OrderedMembers};

use crate::one_or_many::OneOrMany;
use crate::past_call::PastCall;
use crate::unsupported::{Neutral, is_neutral};

/// A message. Fields that its template could write, and that are not supported, must ask for
/// nothing.
#[derive(Deserialize)]
#[serde(expecting = "an object with a role and a content")]
pub(crate) struct Message {
    role: String,
    content: Option<OneOrMany<Part>>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<PastCall>>,
    #[serde(default, rename = "function_call", deserialize_with = "nothing")]
    _function_call: (),
    #[serde(default, rename = "audio", deserialize_with = "nothing")]
    _audio: (),
    #[serde(default, rename = "refusal", deserialize_with = "nothing")]
    _refusal: (),
    /// Further fields that a template may read, such as `reasoning_content`.
    #[serde(flatten)]
    other: OrderedMembers,
}

fn nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match is_neutral(deserializer, Neutral::Null)? {
        true => Ok(()),
        false => Err(serde::de::Error::custom("it is not supported: leave it out")),
    }
}

/// A part of a content.
#[derive(Deserialize)]
#[serde(expecting = "an object with a type and a text")]
pub(crate) struct Part {
    #[serde(rename = "type")]
    _kind: PartKind,
    text: String,
}

/// A content part. Only text is supported: the models have no other modality.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartKind {
    Text,
    /// OpenAI's names in `/v1/responses`.
    InputText,
    OutputText,
}

/// The text of a content.
pub(crate) fn joined(content: OneOrMany<Part>) -> String {
    match content {
        OneOrMany::One(text) => text,
        OneOrMany::Many(parts) => parts.into_iter().map(|part| part.text).collect(),
    }
}

impl Message {
    /// The form that chat templates read; `takes_text` if arguments of calls are text to this one.
    /// As in transformers, a content of null is none beside calls; it is empty in other messages,
    /// as in vLLM.
    pub(crate) fn into_turn(self, takes_text: bool) -> ChatMessage {
        let Message { role, content, name, tool_call_id, tool_calls, mut other, .. } = self;
        let calls = tool_calls.unwrap_or_default();
        let content = content.map(joined).or_else(|| calls.is_empty().then(String::new));
        if !calls.is_empty() {
            let calls = calls.into_iter().map(|call| call.into_json(takes_text)).collect();
            other.insert("tool_calls".into(), OrderedJson::List(calls));
        }
        ChatMessage { role: template_role(role), content, name, tool_call_id, other }
    }
}

/// OpenAI renamed the system role; chat templates use the old name.
pub(crate) fn template_role(role: String) -> String {
    if role == "developer" { "system".into() } else { role }
}
