//! A message of a conversation, as requests spell it.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use trail_runtime::text::{CallForm, ChatMessage, OrderedJson, OrderedMembers};
use utoipa::ToSchema;

use crate::one_or_many::OneOrMany;
use crate::past_call::PastCall;
use crate::unsupported::{Neutral, is_neutral};

/// A message. Fields that its template could write, and that are not supported, must ask for
/// nothing.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a role and a content")]
pub(crate) struct Message {
    role: String,
    content: Option<Text>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<PastCall>>,
    #[serde(default, rename = "function_call", deserialize_with = "nothing")]
    #[schema(ignore)]
    _function_call: (),
    #[serde(default, rename = "audio", deserialize_with = "nothing")]
    #[schema(ignore)]
    _audio: (),
    #[serde(default, rename = "refusal", deserialize_with = "nothing")]
    #[schema(ignore)]
    _refusal: (),
    /// Further fields that a template may read, such as `reasoning_content`.
    #[serde(flatten)]
    #[schema(ignore)]
    other: OrderedMembers,
}

fn nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match is_neutral(deserializer, Neutral::Null)? {
        true => Ok(()),
        false => Err(serde::de::Error::custom("it is not supported: leave it out")),
    }
}

/// A text, or its parts.
pub(crate) type Text = OneOrMany<Part>;

/// A part of a content.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a type and a text")]
#[schema(as = TextPart)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    _kind: PartKind,
    text: String,
}

/// A content part. Only text is supported: the models have no other modality.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
enum PartKind {
    Text,
    /// OpenAI's names in `/v1/responses`.
    InputText,
    OutputText,
    ReasoningText,
}

impl<'de> Deserialize<'de> for PartKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PartKind, D::Error> {
        match &*<Cow<str>>::deserialize(deserializer)? {
            "text" => Ok(PartKind::Text),
            "input_text" => Ok(PartKind::InputText),
            "output_text" => Ok(PartKind::OutputText),
            "reasoning_text" => Ok(PartKind::ReasoningText),
            other => Err(serde::de::Error::custom(format!(
                "a part of type `{other}` is not supported: the models read text alone"
            ))),
        }
    }
}

/// The text of a content.
pub(crate) fn joined(content: Text) -> String {
    match content {
        OneOrMany::One(text) => text,
        OneOrMany::Many(parts) => parts.into_iter().map(|part| part.text).collect(),
    }
}

impl Message {
    /// The message as a chat template reads it, which takes calls in `form`. A content of null is
    /// empty beside no calls, as in vLLM.
    pub(crate) fn into_turn(self, form: CallForm) -> ChatMessage {
        let Message { role, content, name, tool_call_id, tool_calls, mut other, .. } = self;
        let calls = tool_calls.unwrap_or_default();
        let content = content
            .map(joined)
            .or_else(|| (calls.is_empty() || form.empty_content).then(String::new));
        if !calls.is_empty() {
            let calls = calls.into_iter().map(|call| call.into_json(form)).collect();
            other.insert("tool_calls".into(), OrderedJson::List(calls));
        }
        ChatMessage { role: template_role(role), content, name, tool_call_id, other }
    }
}

/// OpenAI renamed the system role; chat templates use the old name.
pub(crate) fn template_role(role: String) -> String {
    if role == "developer" { "system".into() } else { role }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use trail_runtime::text::{ChatOptions, ChatTemplate, Tokenizer};

    use super::*;
    use crate::template_fields::TemplateFields;
    use crate::tools::Tool;

    /// The record of `runtime/tests/golden/make/tool_chats.py`.
    #[derive(Deserialize)]
    struct Recorded {
        /// In the order of their members, which a `Value` has not.
        chats: Vec<OrderedJson>,
        texts: BTreeMap<String, Vec<Option<String>>>,
    }

    #[derive(Deserialize)]
    struct Chat {
        messages: Vec<Message>,
        tools: Option<Vec<Tool>>,
        add_generation_prompt: Option<bool>,
    }

    fn rendered(template: &ChatTemplate, tokenizer: &Tokenizer, chat: &str) -> Option<String> {
        let read = |chat| serde_json::from_str::<Chat>(chat).expect("a chat");
        let Chat { messages, tools, add_generation_prompt } = read(chat);
        let fields: TemplateFields = serde_json::from_str(chat).expect("fields");
        let variables = fields.variables(&tools.unwrap_or_default()).expect("variables");
        let options = ChatOptions {
            add_generation_prompt: add_generation_prompt.unwrap_or(true),
            ..ChatOptions::default()
        };
        let turn = |message: Message| message.into_turn(CallForm::default());
        let turns: Vec<ChatMessage> = messages.into_iter().map(turn).collect();
        let chat = template.render_for(tokenizer, &turns, &variables, options);
        chat.ok().map(|chat| chat.plain_text())
    }

    #[test]
    fn chats_with_tools_are_rendered_as_in_transformers() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tokenizer = Tokenizer::load(&root.join("assets/demo"), 1024).expect("a tokenizer");
        let golden = include_str!("../golden/tool_chats.json");
        let recorded: Recorded = serde_json::from_str(golden).expect("a record");
        let mut count = 0;
        for (name, texts) in &recorded.texts {
            let file = root.join("runtime/tests/text/templates").join(format!("{name}.jinja"));
            let source = std::fs::read_to_string(file).expect("a template");
            let template = ChatTemplate::new(Some(source), "<s>".into(), "</s>".into());
            let template = template.expect("it compiles");
            for (chat, text) in recorded.chats.iter().zip(texts) {
                assert_eq!(
                    rendered(&template, &tokenizer, &chat.to_string()),
                    *text,
                    "{name}: {chat}"
                );
                count += usize::from(text.is_some());
            }
        }
        assert!(count >= 120, "{count} texts");
    }
}
