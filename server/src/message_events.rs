//! Response objects and stream events of Anthropic's Messages API.

use std::sync::Arc;

use axum::response::sse::Event;
use serde_json::{Value, json};
use trail_cli::random;

use crate::access::Access;
use crate::choice::Delta;
use crate::dialect;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, Sent};

/// Fields of a message that do not depend on its answer.
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
    fn message(&self, content: Value, end: (Value, Value), usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": end.0,
            "stop_sequence": end.1,
            "usage": usage,
        })
    }

    /// The message of a whole answer.
    pub(crate) fn whole(&self, answer: Delta, mut usage: Usage) -> Value {
        usage.add(&answer);
        let (end, content) = (end(&answer), json!([{ "type": "text", "text": answer.text }]));
        self.message(content, end, counts(&usage))
    }
}

/// Reason of an answer's end, and the stop sequence that it ended at.
fn end(answer: &Delta) -> (Value, Value) {
    match (answer.finish, &answer.stop) {
        (None, _) => (Value::Null, Value::Null),
        (Some("length"), _) => (json!("max_tokens"), Value::Null),
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
    is_ended: bool,
}

impl MessageEvents {
    /// The events of the message of `head` whose prompt has the counts `usage`.
    pub(crate) fn new(head: MessageHead, access: Arc<Access>, usage: Usage) -> Self {
        MessageEvents { head, access, usage, is_open: false, is_ended: false }
    }
}

/// An event with its type's name, which its data repeats.
fn event(data: &Value) -> Sent {
    let name = data["type"].as_str().unwrap_or_default();
    Event::default().event(name).json_data(data)
}

impl EventSource for MessageEvents {
    fn convert(&mut self, delta: Delta) -> Vec<Sent> {
        let mut events = Vec::new();
        self.usage.add(&delta);
        if !std::mem::replace(&mut self.is_open, true) {
            let none = (Value::Null, Value::Null);
            let message = self.head.message(json!([]), none, counts(&self.usage));
            events.push(event(&json!({ "type": "message_start", "message": message })));
            let block = json!({ "type": "text", "text": "" });
            events.push(event(
                &json!({ "type": "content_block_start", "index": 0, "content_block": block }),
            ));
        }
        if !delta.text.is_empty() {
            let text = json!({ "type": "text_delta", "text": delta.text });
            events
                .push(event(&json!({ "type": "content_block_delta", "index": 0, "delta": text })));
        }
        if delta.finish.is_some() {
            self.is_ended = true;
            let (reason, sequence) = end(&delta);
            let end = json!({ "stop_reason": reason, "stop_sequence": sequence });
            let usage = counts(&self.usage);
            events.push(event(&json!({ "type": "content_block_stop", "index": 0 })));
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
