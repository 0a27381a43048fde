//! The record of one answer, for `generate --json`.

use std::time::Instant;

use serde_json::{Value, json};
use trail_runtime::engine::Event;

/// An answer with its timing, predictions and preemptions.
pub struct Record {
    start: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
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
            start: Instant::now(),
            first_token: None,
            last_token: None,
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
        match *event {
            Event::Alternative { id, logprob } => {
                if let Some(here) = self.alternatives.last_mut() {
                    here.push(json!({ "token": id, "logprob": logprob }));
                }
            }
            Event::Token { id, logprob } => {
                let now = Instant::now();
                self.first_token.get_or_insert(now);
                self.last_token = Some(now);
                self.tokens.push(id);
                self.logprobs.push(logprob);
                self.alternatives.push(Vec::new());
            }
            Event::Prediction { generated, remaining } => {
                self.predictions.push(json!({ "generated": generated, "remaining": remaining }));
            }
            Event::Finished { reason } => self.finish_reason = reason.name(),
            Event::Preempted { .. } => {}
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
            "timing": self.timing(),
        });
        if top_logprobs > 0 {
            object["top_logprobs"] = json!(self.alternatives[..self.tokens.len()]);
        }
        object
    }

    /// Times in seconds; `tokens_per_s` is the decode rate, from the first token to the last.
    fn timing(&self) -> Value {
        let since_start = |at: Option<Instant>| at.map(|at| (at - self.start).as_secs_f64());
        let (ttft_s, total_s) = (since_start(self.first_token), since_start(self.last_token));
        let decode_s = ttft_s.zip(total_s).map(|(first, last)| last - first);
        let steps = self.tokens.len().saturating_sub(1) as f64;
        let tokens_per_s = decode_s.filter(|&s| s > 0.0).map(|s| steps / s);
        json!({ "ttft_s": ttft_s, "total_s": total_s, "tokens_per_s": tokens_per_s })
    }
}
