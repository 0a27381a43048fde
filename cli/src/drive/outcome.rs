//! The outcome of one request.

/// Answer and times of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestOutcome {
    /// Output tokens.
    pub tokens: Vec<u32>,
    /// Seconds from arrival to first token.
    pub ttft_s: f64,
    /// Seconds from arrival to last token.
    pub latency_s: f64,
    /// Longest time between two tokens, seconds; 0 for a single token.
    pub longest_gap_s: f64,
    /// Least seconds per token at which a reader never waits
    /// ([`Delivery::smooth_s`](trail_platform::delivery::Delivery::smooth_s)).
    pub smooth_s: f64,
    /// Refined predictions: (tokens generated, expected remaining).
    pub predictions: Vec<(u32, f32)>,
    /// Tokens of the prompt whose KV was found in the prefix cache.
    pub cached_tokens: u32,
    /// True if the answer ended by an end-of-sequence or stop token.
    pub stopped: bool,
}

impl RequestOutcome {
    /// Longest time without a token, the wait for the first one included, seconds (Learning to
    /// Rank's `max_waiting_time`).
    pub fn max_wait_s(&self) -> f64 {
        self.ttft_s.max(self.longest_gap_s)
    }
}
