//! An answer's text, from its tokens.

use std::sync::Arc;

use trail_runtime::engine::Request;
use trail_runtime::text::{Step, StopMatcher, TextStream, Tokenizer};

/// Assembles text from tokens: characters are never split, stop strings and what follows are cut off,
/// and tokens that end the answer say nothing.
pub struct Answer {
    stream: TextStream<Arc<Tokenizer>>,
    stops: StopMatcher,
    /// Tokens that end the answer; ordinary ones may be among them.
    ends: Vec<u32>,
}

impl Answer {
    /// The answer to `request`, which ends at any of `stops` or at the model's `eos_tokens`.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        stops: StopMatcher,
        request: &Request,
        eos_tokens: &[u32],
    ) -> Self {
        let ends = match request.ignore_eos {
            true => Vec::new(),
            false => [&request.stop_tokens, eos_tokens].concat(),
        };
        Answer { stream: TextStream::new(tokenizer), stops, ends }
    }

    /// Whether `id` ends the answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Takes the next token; the text that can be sent now, and whether a stop string came up.
    pub fn push(&mut self, id: u32) -> Step {
        if self.is_end(id) {
            return Step::default();
        }
        let piece = self.stream.push(id);
        self.stops.push(&piece)
    }

    /// The text held back, at the end.
    pub fn finish(&mut self) -> Step {
        let piece = self.stream.flush();
        let mut step = self.stops.push(&piece);
        if !step.stopped {
            step.emit.push_str(&self.stops.flush());
        }
        step
    }
}
