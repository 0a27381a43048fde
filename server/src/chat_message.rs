//! A message of a conversation, as requests spell it.

use serde::{Deserialize, Deserializer};
use trail_runtime::text::{ChatMessage, OrderedMembers};

use crate::one_or_many::OneOrMany;
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
    #[serde(default, rename = "tool_calls", deserialize_with = "no_tool_calls")]
    _tool_calls: (),
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

fn no_tool_calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    neutral(deserializer, Neutral::EmptyList)
}

fn nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    neutral(deserializer, Neutral::Null)
}

fn neutral<'de, D: Deserializer<'de>>(deserializer: D, neutral: Neutral) -> Result<(), D::Error> {
    match is_neutral(deserializer, neutral)? {
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

impl From<Message> for ChatMessage {
    /// The form that chat templates read.
    fn from(message: Message) -> ChatMessage {
        let content = message.content.map_or(String::new(), joined);
        let Message { role, name, tool_call_id, other, .. } = message;
        ChatMessage { role: template_role(role), content, name, tool_call_id, other }
    }
}

/// OpenAI renamed the system role; chat templates use the old name.
pub(crate) fn template_role(role: String) -> String {
    if role == "developer" { "system".into() } else { role }
}
