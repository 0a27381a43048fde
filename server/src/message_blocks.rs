//! The turns of a request to Anthropic's Messages API: blocks of text, reasoning, calls of tools
//! and their results.

use serde::Deserialize;
use trail_runtime::text::{CallForm, ChatMessage, OrderedJson, OrderedMembers};
use utoipa::ToSchema;

use crate::chat_message::{self, joined};
use crate::one_or_many::OneOrMany;
use crate::past_call::PastCall;

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a role and a content")]
#[schema(as = MessageTurn)]
pub(crate) struct Turn {
    role: Role,
    content: Blocks,
}

#[derive(Deserialize, ToSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[schema(as = MessageRole)]
enum Role {
    User,
    Assistant,
}

/// A text, or blocks.
type Blocks = OneOrMany<Block>;

#[derive(Deserialize, ToSchema)]
#[schema(as = MessageBlock)]
#[serde(tag = "type", rename_all = "snake_case", expecting = "an object with a type")]
enum Block {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: OrderedMembers,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<chat_message::Text>,
    },
    Thinking {
        thinking: String,
    },
    /// Reasoning that no template can read.
    RedactedThinking {},
}

impl Turn {
    /// True for a turn of the assistant.
    pub(crate) fn is_assistant(&self) -> bool {
        self.role == Role::Assistant
    }

    /// Appends the messages that a chat template reads, which takes calls in `form`: each result of
    /// a tool is one.
    pub(crate) fn append(self, form: CallForm, turns: &mut Vec<ChatMessage>) {
        let blocks = match self.content {
            OneOrMany::One(text) => vec![Block::Text { text }],
            OneOrMany::Many(blocks) => blocks,
        };
        let role = if self.role == Role::Assistant { "assistant" } else { "user" };
        let (mut text, mut reasoning, mut calls) = (None::<String>, String::new(), Vec::new());
        for block in blocks {
            match block {
                Block::Text { text: more } => text.get_or_insert_default().push_str(&more),
                Block::Thinking { thinking } => reasoning.push_str(&thinking),
                Block::RedactedThinking {} => {}
                Block::ToolUse { id, name, input } => {
                    calls.push(PastCall::new(&id, &name, input).into_json(form));
                }
                Block::ToolResult { tool_use_id, content } => {
                    turns.extend(text.take().map(|text| ChatMessage::new(role, text)));
                    turns.push(ChatMessage {
                        tool_call_id: Some(tool_use_id),
                        ..ChatMessage::new("tool", content.map(joined).unwrap_or_default())
                    });
                }
            }
        }
        let is_result = turns.last().is_some_and(|turn| turn.role == "tool") && role == "user";
        if text.is_some() || !is_result {
            turns.push(assistant_turn(role, text, reasoning, calls, form));
        }
    }
}

/// A message of text, reasoning and calls, such as an answer was.
pub(crate) fn assistant_turn(
    role: &str,
    text: Option<String>,
    reasoning: String,
    calls: Vec<OrderedJson>,
    form: CallForm,
) -> ChatMessage {
    let is_empty = calls.is_empty() || form.empty_content;
    let content = text.or_else(|| is_empty.then(String::new));
    let mut turn = ChatMessage { content, ..ChatMessage::new(role, "") };
    if !reasoning.is_empty() {
        turn.other.insert("reasoning_content".into(), OrderedJson::Text(reasoning));
    }
    if !calls.is_empty() {
        turn.other.insert("tool_calls".into(), OrderedJson::List(calls));
    }
    turn
}
