//! The object of a response in OpenAI's Responses API, from its start to its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use trail_cli::random;
use trail_runtime::engine::SamplingParams;
use trail_runtime::text::{CallForm, ChatMessage};

use crate::access::Access;
use crate::delta::Delta;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::openapi::Schemas;
use crate::response_items::Items;
use crate::response_store::StoredResponse;
use crate::state::{ServerState, unix_time};

/// Fields of a request that its response repeats.
pub(crate) struct Echoed {
    /// Name of the model, or of its adapter.
    pub model: String,
    /// The system's message of this request.
    pub instructions: Option<String>,
    /// Most tokens of the answer.
    pub max_output_tokens: Option<u32>,
    /// The response that this one goes on from.
    pub previous_response_id: Option<String>,
    /// The client's notes.
    pub metadata: BTreeMap<String, String>,
    /// The response is kept for later requests.
    pub store: bool,
    /// The form of the answer.
    pub format: Value,
    /// The tools, as the request has them.
    pub tools: Value,
    /// Which of these the answer may call, as the request has it.
    pub tool_choice: Value,
    /// Several calls may be in one answer.
    pub parallel_tool_calls: bool,
}

/// A response in progress, and its place in the store.
pub(crate) struct Outcome {
    state: Arc<ServerState>,
    /// Form in which the model's template takes calls.
    call_form: CallForm,
    access: Arc<Access>,
    echoed: Echoed,
    sampling: SamplingParams,
    /// The turns before the answer, if the response is to be kept.
    turns: Option<Vec<ChatMessage>>,
    id: String,
    created: u64,
}

impl Outcome {
    /// The response to the request of `access`, whose `turns` are kept with it if given.
    pub(crate) fn new(
        (state, call_form): (Arc<ServerState>, CallForm),
        access: Arc<Access>,
        echoed: Echoed,
        sampling: SamplingParams,
        turns: Option<Vec<ChatMessage>>,
    ) -> Self {
        let id = format!("resp_{}", random::id());
        Outcome { state, call_form, access, echoed, sampling, turns, id, created: unix_time() }
    }

    /// The object with `status` and `output`.
    fn object(&self, status: &str, output: Value, usage: Value) -> Value {
        let Echoed { instructions, max_output_tokens, previous_response_id, metadata, .. } =
            &self.echoed;
        let Echoed { store, format, tools, tool_choice, parallel_tool_calls, .. } = &self.echoed;
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": instructions,
            "max_output_tokens": max_output_tokens,
            "max_tool_calls": null,
            "metadata": metadata,
            "model": self.echoed.model,
            "output": output,
            "parallel_tool_calls": parallel_tool_calls,
            "previous_response_id": previous_response_id,
            "reasoning": { "effort": null, "summary": null },
            "service_tier": "default",
            "store": store,
            "temperature": decimal(self.sampling.temperature),
            "text": { "format": format },
            "tool_choice": tool_choice,
            "tools": tools,
            "top_logprobs": 0,
            "top_p": decimal(self.sampling.top_p),
            "truncation": "disabled",
            "usage": usage,
            "user": null,
        })
    }

    /// The object before the answer.
    pub(crate) fn begun(&self) -> Value {
        self.object("in_progress", json!([]), Value::Null)
    }

    /// The object of a request that failed after its start.
    pub(crate) fn failed(&self, error: &ApiError) -> Value {
        let mut object = self.object("failed", json!([]), Value::Null);
        object["error"] = json!({ "code": "server_error", "message": error.message() });
        object
    }

    /// The object of the whole `answer` to a prompt with the counts `usage`, which is kept if the
    /// request asked for it.
    pub(crate) fn complete(mut self, mut answer: Delta, mut usage: Usage) -> Value {
        usage.add(&answer);
        let mut items = Items::default();
        items.take(&mut answer);
        self.end(&items, status(answer.finish), &usage)
    }

    /// The object at the end of an answer of `items` that is complete or not by `status`.
    pub(crate) fn end(&mut self, items: &Items, status: &str, usage: &Usage) -> Value {
        let mut object = self.object(status, items.output(status), counts(usage));
        if status == INCOMPLETE {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        if let Some(mut turns) = self.turns.take() {
            turns.push(items.turn(self.call_form));
            let owner = self.access.key().map(|key| key.name.clone());
            let stored = StoredResponse { owner, turns, object: object.clone() };
            self.state.responses.insert(self.id.clone(), stored);
        }
        object
    }
}

/// The schema of the object.
pub(crate) fn schema(schemas: &mut Schemas) -> Value {
    let nullable = |kind: &str| json!({ "type": [kind, "null"] });
    let item = json!({
        "type": "object",
        "properties": {
            "id": { "type": "string" },
            "type": { "enum": ["message", "reasoning", "function_call"] },
            "status": { "type": "string" },
        },
        "required": ["id", "type", "status"],
    });
    let properties = json!({
        "id": { "type": "string" },
        "object": { "const": "response" },
        "created_at": { "type": "integer" },
        "status": { "enum": ["completed", INCOMPLETE] },
        "error": nullable("object"),
        "incomplete_details": nullable("object"),
        "instructions": nullable("string"),
        "max_output_tokens": nullable("integer"),
        "metadata": { "type": "object" },
        "model": { "type": "string" },
        "output": { "type": "array", "items": item },
        "parallel_tool_calls": { "type": "boolean" },
        "previous_response_id": nullable("string"),
        "store": { "type": "boolean" },
        "temperature": { "type": "number" },
        "text": { "type": "object" },
        "tool_choice": { "type": ["string", "object"] },
        "tools": { "type": "array", "items": { "type": "object" } },
        "top_p": { "type": "number" },
        "usage": counts_schema(),
    });
    let required = properties.as_object().map(|fields| fields.keys().collect::<Vec<_>>());
    let object = json!({ "type": "object", "properties": properties, "required": required });
    schemas.add("ResponseObject", object)
}

/// Status of an answer that is cut.
const INCOMPLETE: &str = "incomplete";

/// The status of an answer that ended for the reason `finish`.
pub(crate) fn status(finish: Option<&str>) -> &'static str {
    if finish == Some("length") { INCOMPLETE } else { "completed" }
}

/// The number with the fewest digits that is `value` as f32: 0.7 and not 0.699999988.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// Token counts by this interface's names.
fn counts(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.prompt_tokens_details.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.completion_tokens_details.reasoning_tokens,
        },
        "total_tokens": usage.total_tokens,
    })
}

fn counts_schema() -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    json!({
        "type": "object",
        "properties": { "input_tokens": count, "output_tokens": count, "total_tokens": count },
        "required": ["input_tokens", "output_tokens", "total_tokens"],
    })
}
