//! Times of an answer.

use std::time::Instant;

use serde_json::{Value, json};
use trail_runtime::engine::Event;

/// Time to the first token and rate of the others.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    start: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: usize,
}

impl Timing {
    /// Starts the clock, before the request is submitted.
    pub fn begin() -> Timing {
        Timing { start: Instant::now(), first_token: None, last_token: None, tokens: 0 }
    }

    /// Records the time of an event.
    pub fn take(&mut self, event: &Event) {
        if let Event::Token { .. } = event {
            let now = Instant::now();
            self.first_token.get_or_insert(now);
            self.last_token = Some(now);
            self.tokens += 1;
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Time to the first token, seconds.
    pub fn ttft_s(&self) -> Option<f64> {
        self.first_token.map(|at| (at - self.start).as_secs_f64())
    }

    /// Time to the last token so far, seconds.
    pub fn total_s(&self) -> Option<f64> {
        self.last_token.map(|at| (at - self.start).as_secs_f64())
    }

    /// Decode rate from the first token to the last, tokens per second.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let decode_s = self.total_s()? - self.ttft_s()?;
        (decode_s > 0.0).then(|| self.tokens.saturating_sub(1) as f64 / decode_s)
    }

    /// The times as a JSON object.
    pub fn json(&self) -> Value {
        json!({
            "ttft_s": self.ttft_s(),
            "total_s": self.total_s(),
            "tokens_per_s": self.tokens_per_s(),
        })
    }
}
