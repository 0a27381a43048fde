//! Incremental detokenization of one answer, up to its stop strings.

use std::sync::Arc;

use trail_runtime::engine::Request;
use trail_runtime::text::{Decode, Step, StopMatcher, TextStream, Tokenizer};

/// Text of an answer beside that of its ordinary tokens.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// Special tokens appear by their names.
    pub keep_special: bool,
    /// Special tokens that appear by their names all the same.
    pub kept: Vec<u32>,
    /// The stop string or stop token that ended the answer appears at its end.
    pub include_stop: bool,
}

/// Assembles text from tokens: never splits a character, cuts the answer before a stop string, and
/// emits no text for tokens that end the answer.
pub struct Detokenizer {
    stream: TextStream<TextDecoder>,
    stops: StopMatcher,
    /// Tokens that end the answer: stop tokens of the request, and the model's EOS tokens unless
    /// they are ignored.
    ends: Vec<u32>,
    include_stop: bool,
    decoded_chars: usize,
}

/// Decodes tokens with or without special ones.
pub struct TextDecoder {
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Special tokens appear by their names.
    pub keep_special: bool,
    /// Special tokens that appear by their names all the same.
    pub kept: Vec<u32>,
}

impl Decode for TextDecoder {
    fn decode(&self, ids: &[u32]) -> String {
        // A stream passes over the special tokens that are not kept.
        let skips_special = !self.keep_special && self.kept.is_empty();
        Tokenizer::decode(&self.tokenizer, ids, skips_special)
    }

    fn is_special(&self, id: u32) -> bool {
        !self.keep_special && self.tokenizer.is_special(id) && !self.kept.contains(&id)
    }
}

impl Detokenizer {
    /// An answer to `request`, which ends at any of `stops` or at the model's `eos_tokens`.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        stops: StopMatcher,
        request: &Request,
        eos_tokens: &[u32],
        options: TextOptions,
    ) -> Self {
        let eos_tokens = if request.ignore_eos { &[] } else { eos_tokens };
        let decoder =
            TextDecoder { tokenizer, keep_special: options.keep_special, kept: options.kept };
        Detokenizer {
            stream: TextStream::new(decoder),
            stops: stops.include_stop(options.include_stop),
            ends: [&request.stop_tokens, eos_tokens].concat(),
            include_stop: options.include_stop,
            decoded_chars: 0,
        }
    }

    /// Returns true if `id` ends the answer and is no part of its text.
    pub fn is_end(&self, id: u32) -> bool {
        !self.include_stop && self.ends.contains(&id)
    }

    /// The stop string that ended the answer.
    pub fn stop(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Characters of the tokens so far, without an incomplete one at the end. Those held back for a
    /// possible stop string count.
    pub fn decoded_chars(&self) -> usize {
        self.decoded_chars
    }

    /// Appends the next token. Returns the text that can be sent now, and whether a stop string was
    /// found.
    pub fn push(&mut self, id: u32) -> Step {
        if self.is_end(id) {
            return Step::default();
        }
        let piece = self.stream.push(id);
        self.decoded_chars += piece.chars().count();
        self.stops.push(&piece)
    }

    /// Returns the text that was held back for a possible stop string or an incomplete character.
    pub fn finish(&mut self) -> Step {
        let piece = self.stream.flush();
        self.decoded_chars += piece.chars().count();
        let mut step = self.stops.push(&piece);
        if !step.stopped {
            step.emit.push_str(&self.stops.flush());
        }
        step
    }
}
