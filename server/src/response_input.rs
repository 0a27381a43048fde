//! The input of OpenAI's Responses API: messages, calls of tools, their results, and reasoning.

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use trail_runtime::text::{CallForm, ChatMessage, OrderedJson};
use utoipa::ToSchema;

use crate::chat_message::{Text, joined, template_role};
use crate::message_blocks::assistant_turn;
use crate::one_or_many::OneOrMany;
use crate::past_call::PastCall;

/// An item of the input, read from [`ItemFields`].
pub(crate) enum Item {
    Message { role: String, text: String },
    FunctionCall(PastCall),
    FunctionCallOutput { call_id: String, output: String },
    Reasoning(String),
}

/// A text, or items.
pub(crate) type Input = OneOrMany<Item>;

/// The fields of all items.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a role and a content")]
#[schema(as = InputItem)]
pub(crate) struct ItemFields {
    #[serde(default, rename = "type")]
    kind: Kind,
    role: Option<String>,
    content: Option<Text>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Text>,
}

#[derive(Deserialize, ToSchema, Default)]
#[schema(as = InputItemType)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Message,
    FunctionCall,
    FunctionCallOutput,
    Reasoning,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ItemFields { kind, role, content, call_id, name, arguments, output } =
            ItemFields::deserialize(deserializer)?;
        let missing = D::Error::missing_field;
        Ok(match kind {
            Kind::Message => Item::Message {
                role: role.ok_or_else(|| missing("role"))?,
                text: joined(content.ok_or_else(|| missing("content"))?),
            },
            Kind::FunctionCall => {
                let id = call_id.ok_or_else(|| missing("call_id"))?;
                let name = name.ok_or_else(|| missing("name"))?;
                let arguments = arguments.ok_or_else(|| missing("arguments"))?;
                let call = PastCall::of_text(&id, &name, &arguments);
                Item::FunctionCall(call.map_err(D::Error::custom)?)
            }
            Kind::FunctionCallOutput => Item::FunctionCallOutput {
                call_id: call_id.ok_or_else(|| missing("call_id"))?,
                output: joined(output.ok_or_else(|| missing("output"))?),
            },
            Kind::Reasoning => Item::Reasoning(content.map(joined).unwrap_or_default()),
        })
    }
}

/// The turns of `items`, as a template reads them that takes calls in `form`: the reasoning, the
/// message and the calls of one answer are one turn.
pub(crate) fn turns(items: Vec<Item>, form: CallForm) -> Vec<ChatMessage> {
    let mut turns: Vec<ChatMessage> = Vec::new();
    let mut reasoning = String::new();
    // True while the last turn is an answer that calls may follow.
    let mut is_open = false;
    for item in items {
        match item {
            Item::Reasoning(text) => {
                reasoning.push_str(&text);
                is_open = false;
            }
            Item::Message { role, text } => {
                let role = template_role(role);
                is_open = role == "assistant";
                let reasoning =
                    if is_open { std::mem::take(&mut reasoning) } else { String::new() };
                turns.push(assistant_turn(&role, Some(text), reasoning, Vec::new(), form));
            }
            Item::FunctionCall(call) => {
                let call = call.into_json(form);
                match turns.last_mut().filter(|_| is_open) {
                    Some(turn) => add_call(turn, call),
                    None => {
                        let reasoning = std::mem::take(&mut reasoning);
                        turns.push(assistant_turn("assistant", None, reasoning, vec![call], form));
                    }
                }
                is_open = true;
            }
            Item::FunctionCallOutput { call_id, output } => {
                is_open = false;
                let result = ChatMessage::new("tool", output);
                turns.push(ChatMessage { tool_call_id: Some(call_id), ..result });
            }
        }
    }
    turns
}

fn add_call(turn: &mut ChatMessage, call: OrderedJson) {
    match turn.other.get_mut("tool_calls") {
        Some(OrderedJson::List(calls)) => calls.push(call),
        _ => {
            turn.other.insert("tool_calls".into(), OrderedJson::List(vec![call]));
        }
    }
}
