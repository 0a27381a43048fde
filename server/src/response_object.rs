//! The object of a response in OpenAI's Responses API, from its start to its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use trail_cli::random;
use trail_runtime::engine::SamplingParams;
use trail_runtime::text::ChatMessage;

use crate::access::Access;
use crate::choice::Delta;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::response_store::StoredResponse;
use crate::state::{ServerState, unix_time};

/// Fields of a request that its response repeats.
pub(crate) struct Echoed {
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
}

/// A response in progress, and its place in the store.
pub(crate) struct Outcome {
    state: Arc<ServerState>,
    access: Arc<Access>,
    echoed: Echoed,
    sampling: SamplingParams,
    /// The turns before the answer, if the response is to be kept.
    turns: Option<Vec<ChatMessage>>,
    id: String,
    message_id: String,
    created: u64,
}

impl Outcome {
    /// The response to the request of `access`, whose `turns` are kept with it if given.
    pub(crate) fn new(
        state: Arc<ServerState>,
        access: Arc<Access>,
        echoed: Echoed,
        sampling: SamplingParams,
        turns: Option<Vec<ChatMessage>>,
    ) -> Self {
        let (id, message_id) = (format!("resp_{}", random::id()), format!("msg_{}", random::id()));
        Outcome { state, access, echoed, sampling, turns, id, message_id, created: unix_time() }
    }

    /// Id of the answer's message.
    pub(crate) fn message_id(&self) -> &str {
        &self.message_id
    }

    /// The object with `status` and `output`.
    fn object(&self, status: &str, output: Value, usage: Value) -> Value {
        let Echoed {
            instructions,
            max_output_tokens,
            previous_response_id,
            metadata,
            store,
            format,
        } = &self.echoed;
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
            "model": self.state.name(),
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": previous_response_id,
            "reasoning": { "effort": null, "summary": null },
            "service_tier": "default",
            "store": store,
            "temperature": decimal(self.sampling.temperature),
            "text": { "format": format },
            "tool_choice": "auto",
            "tools": [],
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

    /// The content of the answer's message.
    pub(crate) fn part(text: &str) -> Value {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
    }

    /// The answer's message.
    pub(crate) fn message(&self, status: &str, content: Value) -> Value {
        json!({
            "id": self.message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        })
    }

    /// The object of a request that failed after its start.
    pub(crate) fn failed(&self, error: &ApiError) -> Value {
        let mut object = self.object("failed", json!([]), Value::Null);
        object["error"] = json!({ "code": "server_error", "message": error.message() });
        object
    }

    /// The object of the whole `answer` to a prompt with the counts `usage`, which is kept if the
    /// request asked for it.
    pub(crate) fn complete(mut self, answer: Delta, mut usage: Usage) -> Value {
        usage.add(&answer);
        self.end(&answer.text, answer.finish, &usage)
    }

    /// The object at the end of an answer of `text`, for the reason `finish`.
    pub(crate) fn end(&mut self, text: &str, finish: Option<&str>, usage: &Usage) -> Value {
        let is_cut = finish == Some("length");
        let status = if is_cut { "incomplete" } else { "completed" };
        let message = self.message(status, json!([Outcome::part(text)]));
        let mut object = self.object(status, json!([message]), counts(usage));
        if is_cut {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        if let Some(mut turns) = self.turns.take() {
            turns.push(ChatMessage::new("assistant", text));
            let owner = self.access.key().map(|key| key.name.clone());
            let stored = StoredResponse { owner, turns, object: object.clone() };
            self.state.responses.insert(self.id.clone(), stored);
        }
        object
    }
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
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": usage.total_tokens,
    })
}
