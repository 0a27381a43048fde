//! Log-probabilities in the formats of OpenAI's two endpoints.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use trail_runtime::text::Tokenizer;

/// One generated token with its log-probability.
#[derive(Clone, Debug)]
pub struct Scored {
    /// The token's text.
    text: String,
    logprob: f32,
    /// Most likely tokens at this position with log-probabilities, best first.
    top: Vec<(String, f32)>,
    /// Characters of the answer before the token.
    offset: usize,
}

/// Converts tokens into [`Scored`] tokens, in order.
pub struct Scorer {
    tokenizer: Arc<Tokenizer>,
    top: Vec<(String, f32)>,
    offset: usize,
}

impl Scorer {
    /// A scorer at the start of an answer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Scorer { tokenizer, top: Vec::new(), offset: 0 }
    }

    /// Adds one of the most likely tokens at the next position.
    pub fn alternative(&mut self, id: u32, logprob: f32) {
        self.top.push((self.tokenizer.decode(&[id], false), logprob));
    }

    /// Adds the sampled token.
    pub fn token(&mut self, id: u32, logprob: f32) -> Scored {
        let text = self.tokenizer.decode(&[id], false);
        let offset = self.offset;
        self.offset += text.chars().count();
        Scored { text, logprob, top: std::mem::take(&mut self.top), offset }
    }
}

/// The `logprobs` of a chat answer.
pub fn of_chat(scored: &[Scored]) -> Value {
    let entry = |text: &str, logprob: f32| {
        // A token of part of a character decodes to U+FFFD; its bytes are not known here.
        let bytes = (!text.contains(char::REPLACEMENT_CHARACTER)).then_some(text.as_bytes());
        json!({ "token": text, "logprob": logprob, "bytes": bytes })
    };
    let content = scored.iter().map(|token| {
        let mut object = entry(&token.text, token.logprob);
        object["top_logprobs"] =
            token.top.iter().map(|(text, logprob)| entry(text, *logprob)).collect();
        object
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// The `logprobs` of a completion.
pub fn of_completion(scored: &[Scored]) -> Value {
    let top = |token: &Scored| {
        let mut map: Map<String, Value> = Map::new();
        // Tokens of partial characters have the same text: the first, which is likelier, is kept.
        for (text, logprob) in &token.top {
            map.entry(text.as_str()).or_insert(json!(logprob));
        }
        // The sampled token is always included, so there may be one more than requested.
        map.entry(token.text.as_str()).or_insert(json!(token.logprob));
        map
    };
    json!({
        "tokens": scored.iter().map(|token| token.text.as_str()).collect::<Vec<_>>(),
        "token_logprobs": scored.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": scored.iter().map(top).collect::<Vec<_>>(),
        "text_offset": scored.iter().map(|token| token.offset).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings() {
        let top = vec![("a".to_owned(), -0.5), ("\u{FFFD}".to_owned(), -1.0)];
        let scored = [Scored { text: "b".into(), logprob: -2.0, top, offset: 3 }];
        let chat = of_chat(&scored);
        assert_eq!(chat["content"][0]["token"], "b");
        assert_eq!(chat["content"][0]["bytes"], json!([98]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["bytes"], Value::Null);
        let completion = of_completion(&scored);
        assert_eq!(
            completion["top_logprobs"][0],
            json!({ "a": -0.5, "\u{FFFD}": -1.0, "b": -2.0 })
        );
        assert_eq!(completion["text_offset"], json!([3]));
    }
}
