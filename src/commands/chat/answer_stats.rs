//! Figures of one answer.

use serde_json::{Value, json};
use trail_runtime::engine::{Event, FinishReason};

use crate::answer::Timing;

/// Tokens, times and prediction of an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerStats {
    timing: Timing,
    prompt_tokens: usize,
    /// The first predicted length, tokens.
    predicted: Option<f32>,
    /// Reason of the end.
    pub finish_reason: FinishReason,
}

impl AnswerStats {
    /// Starts the clock, before a prompt of `prompt_tokens` tokens is submitted.
    pub fn begin(prompt_tokens: usize) -> AnswerStats {
        AnswerStats {
            timing: Timing::begin(),
            prompt_tokens,
            predicted: None,
            finish_reason: FinishReason::Cancelled,
        }
    }

    /// Records an event.
    pub fn take(&mut self, event: &Event) {
        self.timing.take(event);
        if let Event::Prediction { generated, remaining } = *event {
            self.predicted.get_or_insert(generated as f32 + remaining);
        }
    }

    /// Tokens of prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.prompt_tokens + self.timing.tokens()
    }

    /// Lines for a person. The conversation has room for `max_context` tokens.
    pub fn lines(&self, max_context: usize) -> Vec<String> {
        let tokens = self.timing.tokens();
        let seconds = |s: Option<f64>| s.map_or("-".into(), |s| format!("{s:.3} s"));
        let rate = self.timing.tokens_per_s().map_or("-".into(), |rate| format!("{rate:.1}"));
        let mut lines = vec![
            format!("answer        {tokens} tokens in {}", seconds(self.timing.total_s())),
            format!("first token   after {}", seconds(self.timing.ttft_s())),
            format!("tokens/s      {rate}, from the first token to the last"),
            format!("context       {} of {max_context} tokens", self.context_tokens()),
        ];
        if let Some(predicted) = self.predicted {
            lines.push(format!("predicted     {predicted:.0} tokens at first, {tokens} came"));
        }
        lines
    }

    /// The figures as a JSON object.
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.timing.tokens(),
            "finish_reason": self.finish_reason.name(),
            "predicted_tokens": self.predicted,
            "timing": self.timing.json(),
        })
    }
}
