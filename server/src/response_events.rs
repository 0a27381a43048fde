//! Stream events of OpenAI's Responses API.

use axum::response::sse::Event;
use serde_json::{Value, json};

use crate::delta::Delta;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, Sent};
use crate::response_items::{ItemEvent, Items};
use crate::response_object::{Outcome, status};

/// Converts one answer to events. Those that open it come with its first text.
pub(crate) struct ResponseEvents {
    outcome: Outcome,
    usage: Usage,
    /// The answer so far.
    items: Items,
    /// Number of the next event.
    number: u64,
    is_ended: bool,
}

impl ResponseEvents {
    /// The events of the response to a prompt with the counts `usage`.
    pub(crate) fn new(outcome: Outcome, usage: Usage) -> Self {
        ResponseEvents { outcome, usage, items: Items::default(), number: 0, is_ended: false }
    }

    /// The event `name` with further `fields`.
    fn event(&mut self, name: &str, mut fields: Value) -> Sent {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.number);
        self.number += 1;
        Event::default().event(name).json_data(fields)
    }
}

impl EventSource for ResponseEvents {
    fn convert(&mut self, mut delta: Delta) -> Vec<Sent> {
        self.usage.add(&delta);
        let mut events: Vec<ItemEvent> = Vec::new();
        if self.number == 0 {
            let begun = json!({ "response": self.outcome.begun() });
            events.push(("response.created", begun.clone()));
            events.push(("response.in_progress", begun));
        }
        events.extend(self.items.take(&mut delta));
        if delta.finish.is_some() {
            self.is_ended = true;
            let status = status(delta.finish);
            self.items.end(status, &mut events);
            let response = self.outcome.end(&self.items, status, &self.usage);
            let is_cut = response["status"] == "incomplete";
            let last = if is_cut { "response.incomplete" } else { "response.completed" };
            events.push((last, json!({ "response": response })));
        }
        events.into_iter().map(|(name, fields)| self.event(name, fields)).collect()
    }

    fn is_ended(&self) -> bool {
        self.is_ended
    }

    fn fail(&mut self, error: &ApiError) -> Sent {
        let response = self.outcome.failed(error);
        self.event("response.failed", json!({ "response": response }))
    }
}
