//! Response objects and stream events of Anthropic's Messages API.

use std::sync::Arc;

use axum::response::sse::Event;
use serde::Serialize;
use serde_json::{Value, json};
use trail_cli::random;
use trail_runtime::text::OrderedMembers;
use utoipa::ToSchema;

use crate::access::Access;
use crate::choice::TOOL_CALLS;
use crate::delta::Delta;
use crate::dialect;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, Sent};

/// Fields of a message that do not depend on its answer.
#[derive(Clone)]
pub(crate) struct MessageHead {
    id: String,
    model: String,
}

impl MessageHead {
    /// The head of a new message of `model`.
    pub(crate) fn new(model: &str) -> Self {
        MessageHead { id: format!("msg_{}", random::id()), model: model.to_owned() }
    }

    /// A message with `content`, and the reason of its end if it has ended.
    fn message(self, content: Vec<Block>, end: (Value, Value), usage: &Usage) -> Message {
        Message {
            id: self.id,
            kind: "message",
            role: "assistant",
            model: self.model,
            content,
            stop_reason: end.0,
            stop_sequence: end.1,
            usage: counts(usage),
        }
    }

    /// The message of a whole answer.
    pub(crate) fn whole(self, mut answer: Delta, mut usage: Usage) -> Message {
        usage.add(&answer);
        let calls = answer.whole_calls();
        let mut content = Vec::new();
        if !answer.reasoning.is_empty() {
            content.push(Block::thinking(&answer.reasoning));
        }
        if !answer.text.is_empty() || calls.is_empty() {
            content.push(Block::Text { text: std::mem::take(&mut answer.text) });
        }
        content.extend(calls.into_iter().filter_map(|call| {
            let (id, name) = call.begins?;
            // Arguments that the answer's length has cut are no object.
            let input = serde_json::from_str(&call.arguments).unwrap_or_default();
            Some(Block::ToolUse { id, name, input })
        }));
        self.message(content, end(&answer), &usage)
    }
}

/// Anthropic's object of an answer.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageResponse)]
pub(crate) struct Message {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    stop_reason: Value,
    stop_sequence: Value,
    usage: Value,
}

/// A block of an answer; in a stream it begins empty.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = AnswerBlock)]
enum Block {
    /// With the empty signature of a server that validates none.
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    Text {
        text: String,
    },
    /// The input's members have the answer's order, so that they are found in the prefix cache when
    /// the client sends them back.
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: OrderedMembers,
    },
}

impl Block {
    fn thinking(text: &str) -> Block {
        Block::Thinking { thinking: text.to_owned(), signature: "" }
    }

    /// True if both are of one kind, and no calls: text goes on in a block of its kind.
    fn takes(&self, other: &Block) -> bool {
        !matches!(self, Block::ToolUse { .. })
            && std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Reason of an answer's end, and the stop sequence that it ended at.
fn end(answer: &Delta) -> (Value, Value) {
    match (answer.finish, &answer.stop) {
        (None, _) => (Value::Null, Value::Null),
        (Some("length"), _) => (json!("max_tokens"), Value::Null),
        (Some(TOOL_CALLS), _) => (json!("tool_use"), Value::Null),
        (_, Some(stop)) => (json!("stop_sequence"), json!(stop)),
        _ => (json!("end_turn"), Value::Null),
    }
}

/// Token counts; those of the prompt are divided into computed and cached ones.
fn counts(usage: &Usage) -> Value {
    let cached = usage.prompt_tokens_details.cached_tokens;
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    })
}

/// Converts one answer to the events of a message. Those that open it come with its first text.
pub(crate) struct MessageEvents {
    head: MessageHead,
    access: Arc<Access>,
    usage: Usage,
    is_open: bool,
    /// The block that goes on, and its index.
    block: Option<(Block, usize)>,
    is_ended: bool,
}

impl MessageEvents {
    /// The events of the message of `head` whose prompt has the counts `usage`.
    pub(crate) fn new(head: MessageHead, access: Arc<Access>, usage: Usage) -> Self {
        MessageEvents { head, access, usage, is_open: false, block: None, is_ended: false }
    }

    /// The events that begin `block`, unless the one before it goes on.
    fn begin(&mut self, block: Block, events: &mut Vec<Sent>) {
        if self.block.as_ref().is_some_and(|(open, _)| open.takes(&block)) {
            return;
        }
        let index = self.block.as_ref().map_or(0, |(_, index)| index + 1);
        self.stop(events);
        let start =
            json!({ "type": "content_block_start", "index": index, "content_block": block });
        events.push(event(&start));
        self.block = Some((block, index));
    }

    fn stop(&self, events: &mut Vec<Sent>) {
        if let Some((_, index)) = &self.block {
            events.push(event(&json!({ "type": "content_block_stop", "index": index })));
        }
    }

    /// The event of a piece of the block that goes on.
    fn piece(&self, delta: &Value, events: &mut Vec<Sent>) {
        let index = self.block.as_ref().map_or(0, |(_, index)| *index);
        events
            .push(event(&json!({ "type": "content_block_delta", "index": index, "delta": delta })));
    }

    /// The events of the parts of an answer.
    fn parts(&mut self, delta: &mut Delta, events: &mut Vec<Sent>) {
        if !delta.reasoning.is_empty() {
            self.begin(Block::thinking(""), events);
            let piece = json!({ "type": "thinking_delta", "thinking": delta.reasoning });
            self.piece(&piece, events);
        }
        let is_only = self.block.is_none() && delta.finish.is_some() && delta.calls.is_empty();
        if !delta.text.is_empty() || is_only {
            self.begin(Block::Text { text: String::new() }, events);
        }
        if !delta.text.is_empty() {
            self.piece(&json!({ "type": "text_delta", "text": delta.text }), events);
        }
        for call in std::mem::take(&mut delta.calls) {
            if let Some((id, name)) = call.begins {
                let input = OrderedMembers::new();
                self.begin(Block::ToolUse { id, name, input }, events);
            }
            if !call.arguments.is_empty() {
                let piece = json!({ "type": "input_json_delta", "partial_json": call.arguments });
                self.piece(&piece, events);
            }
        }
    }
}

/// An event with its type's name, which its data repeats.
fn event(data: &Value) -> Sent {
    let name = data["type"].as_str().unwrap_or_default();
    Event::default().event(name).json_data(data)
}

impl EventSource for MessageEvents {
    fn convert(&mut self, mut delta: Delta) -> Vec<Sent> {
        let mut events = Vec::new();
        self.usage.add(&delta);
        if !std::mem::replace(&mut self.is_open, true) {
            let none = (Value::Null, Value::Null);
            let message = self.head.clone().message(Vec::new(), none, &self.usage);
            events.push(event(&json!({ "type": "message_start", "message": message })));
        }
        self.parts(&mut delta, &mut events);
        if delta.finish.is_some() {
            self.is_ended = true;
            let (reason, sequence) = end(&delta);
            let end = json!({ "stop_reason": reason, "stop_sequence": sequence });
            let usage = counts(&self.usage);
            self.stop(&mut events);
            events.push(event(&json!({ "type": "message_delta", "delta": end, "usage": usage })));
            events.push(event(&json!({ "type": "message_stop" })));
        }
        events
    }

    fn is_ended(&self) -> bool {
        self.is_ended
    }

    fn fail(&mut self, error: &ApiError) -> Sent {
        event(&dialect::anthropic_error(error, &self.access.id))
    }
}
