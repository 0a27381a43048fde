//! Stream events of OpenAI's Responses API.

use axum::response::sse::Event;
use serde_json::{Value, json};

use crate::choice::Delta;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, Sent};
use crate::response_object::Outcome;

/// Converts one answer to events. Those that open it come with its first text.
pub(crate) struct ResponseEvents {
    outcome: Outcome,
    usage: Usage,
    /// The answer so far.
    text: String,
    /// Number of the next event.
    number: u64,
    is_ended: bool,
}

impl ResponseEvents {
    /// The events of the response to a prompt with the counts `usage`.
    pub(crate) fn new(outcome: Outcome, usage: Usage) -> Self {
        ResponseEvents { outcome, usage, text: String::new(), number: 0, is_ended: false }
    }

    /// The event `name` with further `fields`.
    fn event(&mut self, name: &str, mut fields: Value) -> Sent {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.number);
        self.number += 1;
        Event::default().event(name).json_data(fields)
    }

    /// An event about the answer's only content part.
    fn part_event(&mut self, name: &str, mut fields: Value) -> Sent {
        fields["item_id"] = json!(self.outcome.message_id());
        fields["output_index"] = json!(0);
        fields["content_index"] = json!(0);
        self.event(name, fields)
    }

    fn open(&mut self) -> Vec<Sent> {
        let (begun, item) = (self.outcome.begun(), self.outcome.message("in_progress", json!([])));
        let item = json!({ "output_index": 0, "item": item });
        let part = json!({ "part": Outcome::part("") });
        vec![
            self.event("response.created", json!({ "response": begun })),
            self.event("response.in_progress", json!({ "response": begun })),
            self.event("response.output_item.added", item),
            self.part_event("response.content_part.added", part),
        ]
    }

    fn close(&mut self, finish: Option<&str>) -> Vec<Sent> {
        let (text, usage) = (std::mem::take(&mut self.text), self.usage);
        let response = self.outcome.end(&text, finish, &usage);
        let item = json!({ "output_index": 0, "item": response["output"][0] });
        let is_cut = response["status"] == "incomplete";
        let last = if is_cut { "response.incomplete" } else { "response.completed" };
        vec![
            self.part_event("response.output_text.done", json!({ "text": text, "logprobs": [] })),
            self.part_event("response.content_part.done", json!({ "part": Outcome::part(&text) })),
            self.event("response.output_item.done", item),
            self.event(last, json!({ "response": response })),
        ]
    }
}

impl EventSource for ResponseEvents {
    fn convert(&mut self, delta: Delta) -> Vec<Sent> {
        self.usage.add(&delta);
        let mut events = if self.number == 0 { self.open() } else { Vec::new() };
        if !delta.text.is_empty() {
            self.text.push_str(&delta.text);
            let fields = json!({ "delta": delta.text, "logprobs": [] });
            events.push(self.part_event("response.output_text.delta", fields));
        }
        if delta.finish.is_some() {
            self.is_ended = true;
            events.extend(self.close(delta.finish));
        }
        events
    }

    fn is_ended(&self) -> bool {
        self.is_ended
    }

    fn fail(&mut self, error: &ApiError) -> Sent {
        let response = self.outcome.failed(error);
        self.event("response.failed", json!({ "response": response }))
    }
}
