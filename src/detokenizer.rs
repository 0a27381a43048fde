//! Incremental detokenization of one answer, up to its stop strings.

use std::sync::Arc;

use trail_runtime::engine::Request;
use trail_runtime::text::{Step, StopMatcher, TextStream, Tokenizer};

/// Assembles text from tokens: never splits a character, cuts the answer before a stop string, and
/// emits no text for tokens that end the answer.
pub struct Detokenizer {
    stream: TextStream<Arc<Tokenizer>>,
    stops: StopMatcher,
    /// Tokens that end the answer: stop tokens of the request and EOS tokens of the model.
    ends: Vec<u32>,
}

impl Detokenizer {
    /// An answer to `request`, which ends at any of `stops` or at the model's `eos_tokens`.
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
        Detokenizer { stream: TextStream::new(tokenizer), stops, ends }
    }

    /// Returns true if `id` ends the answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Appends the next token. Returns the text that can be sent now, and whether a stop string was
    /// found.
    pub fn push(&mut self, id: u32) -> Step {
        if self.is_end(id) {
            return Step::default();
        }
        let piece = self.stream.push(id);
        self.stops.push(&piece)
    }

    /// Returns the text that was held back for a possible stop string or an incomplete character.
    pub fn finish(&mut self) -> Step {
        let piece = self.stream.flush();
        let mut step = self.stops.push(&piece);
        if !step.stopped {
            step.emit.push_str(&self.stops.flush());
        }
        step
    }
}
