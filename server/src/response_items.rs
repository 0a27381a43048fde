//! The output of a response: reasoning, messages and calls of tools, as they are written.

use serde_json::{Value, json};
use trail_cli::random;
use trail_runtime::text::{CallForm, ChatMessage};

use crate::delta::Delta;
use crate::message_blocks::assistant_turn;
use crate::past_call::PastCall;

/// An event of a stream: its name, and its fields beside the number.
pub(crate) type ItemEvent = (&'static str, Value);

/// An item of the output.
struct Item {
    id: String,
    kind: Kind,
    /// Text, or arguments.
    text: String,
}

enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

/// The items so far. The last one goes on until another begins.
#[derive(Default)]
pub(crate) struct Items(Vec<Item>);

impl Items {
    /// Takes the next part of an answer. Returns its events.
    pub(crate) fn take(&mut self, delta: &mut Delta) -> Vec<ItemEvent> {
        let mut events = Vec::new();
        if !delta.reasoning.is_empty() {
            if !self.goes_on(|kind| matches!(kind, Kind::Reasoning)) {
                self.begin(format!("rs_{}", random::id()), Kind::Reasoning, &mut events);
            }
            self.piece(&delta.reasoning, &mut events);
        }
        // A whole answer has one message at least, or a call.
        let is_only = self.0.is_empty() && delta.finish.is_some() && delta.calls.is_empty();
        let has_text = !delta.text.is_empty();
        if (has_text || is_only) && !self.goes_on(|kind| matches!(kind, Kind::Message)) {
            self.begin(format!("msg_{}", random::id()), Kind::Message, &mut events);
        }
        if has_text {
            self.piece(&delta.text, &mut events);
        }
        for call in std::mem::take(&mut delta.calls) {
            if let Some((call_id, name)) = call.begins {
                let kind = Kind::Call { call_id, name };
                self.begin(format!("fc_{}", random::id()), kind, &mut events);
            }
            if !call.arguments.is_empty() {
                self.piece(&call.arguments, &mut events);
            }
        }
        events
    }

    fn goes_on(&self, is_kind: impl Fn(&Kind) -> bool) -> bool {
        self.0.last().is_some_and(|item| is_kind(&item.kind))
    }

    fn begin(&mut self, id: String, kind: Kind, events: &mut Vec<ItemEvent>) {
        self.end("completed", events);
        let item = Item { id, kind, text: String::new() };
        let index = self.0.len();
        let added = json!({ "output_index": index, "item": item.object("in_progress") });
        events.push(("response.output_item.added", added));
        if let Some(part) = item.part() {
            let part = item.about(index, json!({ "part": part }));
            events.push(("response.content_part.added", part));
        }
        self.0.push(item);
    }

    fn piece(&mut self, text: &str, events: &mut Vec<ItemEvent>) {
        let index = self.0.len().saturating_sub(1);
        let Some(item) = self.0.last_mut() else { return };
        item.text.push_str(text);
        let name = match item.kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => "response.output_text.delta",
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        let mut fields = json!({ "delta": text });
        if matches!(item.kind, Kind::Message) {
            fields["logprobs"] = json!([]);
        }
        events.push((name, item.about(index, fields)));
    }

    /// Appends the events that end the last item with `status`.
    pub(crate) fn end(&self, status: &str, events: &mut Vec<ItemEvent>) {
        let Some(item) = self.0.last() else { return };
        let index = self.0.len() - 1;
        let (name, fields) = match item.kind {
            Kind::Reasoning => ("response.reasoning_text.done", json!({ "text": item.text })),
            Kind::Message => {
                let fields = json!({ "text": item.text, "logprobs": [] });
                ("response.output_text.done", fields)
            }
            Kind::Call { .. } => {
                ("response.function_call_arguments.done", json!({ "arguments": item.text }))
            }
        };
        events.push((name, item.about(index, fields)));
        if let Some(part) = item.part() {
            let part = item.about(index, json!({ "part": part }));
            events.push(("response.content_part.done", part));
        }
        let done = json!({ "output_index": index, "item": item.object(status) });
        events.push(("response.output_item.done", done));
    }

    /// The output; its last item has `status`.
    pub(crate) fn output(&self, status: &str) -> Value {
        let last = self.0.len().saturating_sub(1);
        let object =
            |(at, item): (usize, &Item)| item.object(if at == last { status } else { "completed" });
        self.0.iter().enumerate().map(object).collect()
    }

    /// The answer as a turn of a conversation. A call that was cut is left out.
    pub(crate) fn turn(&self, form: CallForm) -> ChatMessage {
        let (mut text, mut reasoning, mut calls) = (None::<String>, String::new(), Vec::new());
        for item in &self.0 {
            match &item.kind {
                Kind::Reasoning => reasoning.push_str(&item.text),
                Kind::Message => text.get_or_insert_default().push_str(&item.text),
                Kind::Call { call_id, name } => {
                    let call = PastCall::of_text(call_id, name, &item.text);
                    calls.extend(call.ok().map(|call| call.into_json(form)));
                }
            }
        }
        assistant_turn("assistant", text, reasoning, calls, form)
    }
}

impl Item {
    /// `fields` of an event about this item, number `index` of the output.
    fn about(&self, index: usize, mut fields: Value) -> Value {
        fields["item_id"] = json!(self.id);
        fields["output_index"] = json!(index);
        if !matches!(self.kind, Kind::Call { .. }) {
            fields["content_index"] = json!(0);
        }
        fields
    }

    /// Its only content part.
    fn part(&self) -> Option<Value> {
        let text = &self.text;
        match self.kind {
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": text })),
            Kind::Message => Some(
                json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
            ),
            Kind::Call { .. } => None,
        }
    }

    fn object(&self, status: &str) -> Value {
        let (id, text) = (&self.id, &self.text);
        // One that has begun has no part yet.
        let is_begun = status == "in_progress";
        let content = if is_begun { json!([]) } else { self.part().into_iter().collect() };
        match &self.kind {
            Kind::Reasoning => json!({ "id": id, "type": "reasoning", "status": status,
                                       "summary": [], "content": content }),
            Kind::Message => json!({ "id": id, "type": "message", "status": status,
                                     "role": "assistant", "content": content }),
            Kind::Call { call_id, name } => json!({ "id": id, "type": "function_call",
                "status": status, "call_id": call_id, "name": name, "arguments": text }),
        }
    }
}
