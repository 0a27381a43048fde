//! The record of one answer, for `generate --json`.

use serde_json::{Value, json};
use trail_runtime::engine::Event;

use crate::answer::Timing;

/// An answer with its timing, predictions and preemptions.
pub struct Record {
    timing: Timing,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// The most likely tokens at each position of `tokens`, and at the one being generated.
    alternatives: Vec<Vec<Value>>,
    predictions: Vec<Value>,
    /// The answer's text.
    pub text: String,
    /// Finish reason, in OpenAI's spelling.
    pub finish_reason: &'static str,
}

impl Record {
    /// Starts the record, and its clock, before `prompt` is submitted.
    pub fn begin(prompt: &[u32]) -> Self {
        Record {
            timing: Timing::begin(),
            prompt_tokens: prompt.to_vec(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            alternatives: vec![Vec::new()],
            predictions: Vec::new(),
            text: String::new(),
            finish_reason: "",
        }
    }

    /// Records an event.
    pub fn take(&mut self, event: &Event) {
        self.timing.take(event);
        match *event {
            Event::Alternative { id, logprob } => {
                if let Some(here) = self.alternatives.last_mut() {
                    here.push(json!({ "token": id, "logprob": logprob }));
                }
            }
            Event::Token { id, logprob } => {
                self.tokens.push(id);
                self.logprobs.push(logprob);
                self.alternatives.push(Vec::new());
            }
            Event::Prediction { generated, remaining } => {
                self.predictions.push(json!({ "generated": generated, "remaining": remaining }));
            }
            Event::PromptToken { .. } | Event::Finished { .. } | Event::Preempted { .. } => {}
        }
    }

    /// The JSON object; it has `top_logprobs` only if alternatives were requested.
    pub fn json(&self, top_logprobs: u8) -> Value {
        let mut object = json!({
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "logprobs": self.logprobs,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "predictions": self.predictions,
            "timing": self.timing.json(),
        });
        if top_logprobs > 0 {
            object["top_logprobs"] = json!(self.alternatives[..self.tokens.len()]);
        }
        object
    }
}
