//! Log-probabilities in the formats of OpenAI's two endpoints.

use std::fmt::Write;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use trail_runtime::text::Tokenizer;
use utoipa::ToSchema;

/// One token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
struct Likelihood {
    id: u32,
    /// The token's own bytes, which can be part of a character.
    bytes: Vec<u8>,
    logprob: f32,
}

/// One generated token with its log-probability.
#[derive(Clone, Debug)]
pub(crate) struct Scored {
    token: Likelihood,
    /// Most likely tokens at this position, best first.
    top: Vec<Likelihood>,
    /// Position of the token's first character in the text: characters before it.
    pub offset: usize,
    /// The token ended the answer and is no part of its text.
    pub is_end: bool,
}

/// Converts tokens into [`Scored`] tokens, in order.
pub(crate) struct Scorer {
    tokenizer: Arc<Tokenizer>,
    top: Vec<Likelihood>,
    /// True before the first token of text.
    first: bool,
}

impl Scorer {
    /// A scorer at the start of an answer.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Scorer { tokenizer, top: Vec::new(), first: true }
    }

    fn likelihood(&self, id: u32, logprob: f32) -> Likelihood {
        Likelihood { id, bytes: self.tokenizer.token_bytes(id, self.first), logprob }
    }

    /// Adds one of the most likely tokens at the next position.
    pub(crate) fn alternative(&mut self, id: u32, logprob: f32) {
        self.top.push(self.likelihood(id, logprob));
    }

    /// Adds the sampled token, before which there are `offset` characters of text.
    pub(crate) fn token(&mut self, id: u32, logprob: f32, offset: usize) -> Scored {
        let token = self.likelihood(id, logprob);
        self.first &= self.tokenizer.is_special(id);
        Scored { token, top: std::mem::take(&mut self.top), offset, is_end: false }
    }
}

/// The text of token `id` within a text.
pub(crate) fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    spelled(tokenizer.token_bytes(id, false))
}

/// The text of a token's bytes; OpenAI's spelling if they are no text.
fn spelled(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        error.as_bytes().iter().fold("bytes:".to_owned(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
            text
        })
    })
}

impl Likelihood {
    /// The token's text.
    fn text(&self) -> String {
        spelled(self.bytes.clone())
    }

    fn json(&self) -> Value {
        json!({ "token": self.text(), "logprob": self.logprob, "bytes": self.bytes })
    }
}

/// The `logprobs` of a chat answer.
pub(crate) fn of_chat(scored: &[Scored]) -> Value {
    let content = scored.iter().map(|token| {
        let mut object = token.token.json();
        object["top_logprobs"] = token.top.iter().map(Likelihood::json).collect();
        object
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// The `logprobs` of a completion: one entry in each list for a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// In 64 bits, so that a token has the same digits here and in `top_logprobs`.
    token_logprobs: Vec<Option<f64>>,
    #[schema(value_type = Vec<Value>)]
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Appends a token, before whose text there are `chars` characters.
    pub(crate) fn push(&mut self, scored: &Scored, chars: usize) {
        self.tokens.push(scored.token.text());
        self.token_logprobs.push(Some(scored.token.logprob.into()));
        self.top_logprobs.push(Some(top_of_completion(scored)));
        self.text_offset.push(chars + scored.offset);
    }

    /// Appends the first token of a prompt, which has no log-probability.
    pub(crate) fn push_first(&mut self, token: &Scored) {
        self.tokens.push(token.token.text());
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(token.offset);
    }
}

/// Log-probabilities by the tokens' texts; by its id for a token with the text of a likelier one.
/// The sampled token is always included, so there may be one more than requested.
fn top_of_completion(scored: &Scored) -> Map<String, Value> {
    let mut map: Map<String, Value> = Map::new();
    let sampled = scored.top.iter().all(|top| top.id != scored.token.id).then_some(&scored.token);
    for likelihood in scored.top.iter().chain(sampled) {
        let text = likelihood.text();
        let key = match map.contains_key(&text) {
            true => format!("token_id:{}", likelihood.id),
            false => text,
        };
        map.insert(key, json!(likelihood.logprob));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likelihood(id: u32, bytes: &[u8], logprob: f32) -> Likelihood {
        Likelihood { id, bytes: bytes.to_vec(), logprob }
    }

    #[test]
    fn both_spellings() {
        let top = vec![
            likelihood(1, b"a", -0.5),
            likelihood(2, &[0xF0, 0x9F], -1.0),
            likelihood(3, &[0xF0, 0x98], -1.5),
            likelihood(4, b"a", -1.75),
        ];
        let token = likelihood(5, b"b", -2.0);
        let scored = [Scored { token, top, offset: 3, is_end: false }];
        let chat = of_chat(&scored);
        assert_eq!(chat["content"][0]["token"], "b");
        assert_eq!(chat["content"][0]["bytes"], json!([98]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["bytes"], json!([0xF0, 0x9F]));
        let mut completion = CompletionLogprobs::default();
        completion.push(&scored[0], 4);
        let completion = json!(completion);
        assert_eq!(
            completion["top_logprobs"][0],
            json!({ "a": -0.5, "bytes:\\xf0\\x9f": -1.0, "bytes:\\xf0\\x98": -1.5,
                    "token_id:4": -1.75, "b": -2.0 })
        );
        assert_eq!(completion["text_offset"], json!([7]));
    }
}
