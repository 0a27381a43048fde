//! The part of a request for an answer that the order of requests depends on.

use std::time::Duration;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::features::Features;
use crate::body::Body;
use crate::error::ApiError;
use crate::number::{Count, Priority};
use crate::time_limits::TimeLimits;

/// Fields that the proxy reads for itself. Servers that know no other fields than OpenAI's refuse
/// them, and vLLM refuses `priority` under its own order: they are not passed on.
const OWN: [&str; 4] = ["priority", "deadline_ms", "max_wait_ms", "trail"];

/// Fields of the longest answer, in the dialects of the paths that wait.
const LIMITS: [&str; 5] =
    ["max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens", "n_predict"];

/// Fields that may have these below them: TGI's and SGLang's.
const BELOW: [&str; 2] = ["parameters", "sampling_params"];

/// Fields with a prompt's text.
const TEXTS: [&str; 8] =
    ["messages", "prompt", "input", "inputs", "text", "system", "instructions", "tools"];

/// Members whose text says nothing about an answer: names of kinds, and data of images and sounds.
const NO_TEXT: [&str; 8] =
    ["role", "type", "id", "url", "data", "image_url", "input_audio", "file_data"];

/// Bytes of a prompt for each of its tokens: an estimate, as the proxy has no tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// A request as the queue sees it.
#[derive(Debug)]
pub(super) struct Asked {
    /// The body to send.
    pub body: Bytes,
    /// The prompt's words, and what else predicts the length.
    pub features: Features,
    /// Tokens of the prompt, estimated.
    pub prompt_tokens: usize,
    /// Most tokens of the answer, if it says so.
    pub max_tokens: Option<u32>,
    /// True if it asks for a stream.
    pub streams: bool,
    /// Its priority: lower first.
    pub priority: Option<Priority>,
    /// Times by which it wants its answer.
    pub limits: TimeLimits,
}

/// The proxy's own fields.
#[derive(Default, Deserialize)]
struct Own {
    priority: Option<Priority>,
    deadline_ms: Option<Count>,
    max_wait_ms: Option<Count>,
}

impl Asked {
    /// Reads `body`. One that is no JSON object is passed on as it is: the server says why it
    /// refuses it.
    ///
    /// # Errors
    ///
    /// A malformed field of the proxy's own.
    pub(super) fn read(body: Bytes) -> Result<Asked, ApiError> {
        let Ok(members) = members(&body) else { return Ok(Asked::unknown(body)) };
        let has_own = members.iter().any(|(name, _)| OWN.contains(&name.as_str()));
        let own: Own = match has_own {
            true => Body::new(body.clone()).read()?,
            false => Own::default(),
        };
        let time = |ms: Option<Count>| ms.map(|ms| Duration::from_millis(ms.get().into()));
        let value = |name: &str| {
            let of = members.iter().rev().find(|(other, _)| other == name)?;
            serde_json::from_str::<Value>(of.1.get()).ok()
        };
        let below = BELOW.iter().filter_map(|name| value(name)).collect::<Vec<_>>();
        let limit = |name: &&str| {
            let of = value(name).and_then(|of| of.as_u64());
            of.or_else(|| below.iter().find_map(|of| of.get(name)?.as_u64()))
        };
        let max_tokens = LIMITS.iter().find_map(limit);
        let max_tokens = max_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let mut features = Features::default();
        let mut bytes = 0;
        // The Responses API has the form of an answer in an object `text`.
        let is_text = |name: &str, value: &Value| name != "text" || !value.is_object();
        let texts = TEXTS.iter().filter_map(|name| value(name).filter(|of| is_text(name, of)));
        texts.for_each(|text| {
            read_text(&text, &mut |text| {
                bytes += text.len();
                features.add_text(text);
            });
        });
        if let Some(Value::String(model)) = value("model") {
            features.add_fact("model", &model);
        }
        if let Some(limit) = max_tokens {
            features.add_fact("limit", &limit.checked_ilog2().unwrap_or(0).to_string());
        }
        let streams = value("stream") == Some(Value::Bool(true));
        let limits =
            TimeLimits { deadline: time(own.deadline_ms), max_wait: time(own.max_wait_ms) };
        let priority = own.priority;
        let sent = has_own.then(|| without_own(&members));
        let prompt_tokens = bytes.div_ceil(BYTES_PER_TOKEN).max(1);
        drop(members);
        let body = sent.unwrap_or(body);
        Ok(Asked { body, features, prompt_tokens, max_tokens, streams, priority, limits })
    }

    fn unknown(body: Bytes) -> Asked {
        let prompt_tokens = body.len().div_ceil(BYTES_PER_TOKEN).max(1);
        Asked {
            body,
            features: Features::default(),
            prompt_tokens,
            max_tokens: None,
            streams: false,
            priority: None,
            limits: TimeLimits::default(),
        }
    }
}

/// The members of a JSON object in their order, the values as they are written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

fn members(body: &[u8]) -> Result<Vec<(String, &RawValue)>, serde_json::Error> {
    serde_json::from_slice::<Members<'_>>(body).map(|members| members.0)
}

/// The object of `members` without the proxy's own: each value as it was written.
fn without_own(members: &[(String, &RawValue)]) -> Bytes {
    let others = members.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
    let members = others.map(|(name, value)| format!("{}:{}", Value::from(&**name), value.get()));
    format!("{{{}}}", members.collect::<Vec<_>>().join(",")).into()
}

/// Calls `with` for each text in `value`.
fn read_text(value: &Value, with: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => with(text),
        Value::Array(items) => items.iter().for_each(|item| read_text(item, with)),
        Value::Object(members) => {
            let texts = members.iter().filter(|(name, _)| !NO_TEXT.contains(&name.as_str()));
            texts.for_each(|(_, value)| read_text(value, with));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &'static str) -> Asked {
        Asked::read(Bytes::from_static(body.as_bytes())).expect("it is read")
    }

    #[test]
    fn a_body_without_own_fields_is_passed_on_byte_for_byte() {
        for body in ["{ \"prompt\" : \"a\",\n \"n\":1.50 }", "{", "", "[1]", "\u{FEFF}{}"] {
            assert_eq!(read(body).body, body.as_bytes(), "{body}");
        }
    }

    #[test]
    fn own_fields_are_read_and_taken_out() {
        let asked = read(
            r#"{"prompt": "a b", "priority": -3, "seed": 1.50, "deadline_ms": 1500, "trail": {},
                "a\"b": [ 1 ], "max_wait_ms": 20}"#,
        );
        assert_eq!(asked.body, r#"{"prompt":"a b","seed":1.50,"a\"b":[ 1 ]}"#.as_bytes());
        assert_eq!(asked.priority.map(i64::from), Some(-3));
        let limits = asked.limits;
        let [deadline, max_wait] = [1500, 20].map(|ms| Some(Duration::from_millis(ms)));
        assert_eq!((limits.deadline, limits.max_wait), (deadline, max_wait));
        for bad in [r#"{"priority": 200}"#, r#"{"deadline_ms": "soon"}"#, r#"{"max_wait_ms": -1}"#]
        {
            let error = Asked::read(Bytes::from_static(bad.as_bytes())).expect_err("refused");
            assert_eq!(error.status().as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn facts_are_those_of_every_dialect() {
        let chat = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "abcd"},
            {"type": "image_url", "image_url": {"url": "data:,aaaaaaaaaaaaaaaaaaaaaaa"}}]}],
            "max_completion_tokens": 7, "max_tokens": 9, "stream": true}"#;
        let asked = read(chat);
        assert_eq!((asked.prompt_tokens, asked.max_tokens, asked.streams), (1, Some(7), true));
        let native = read(r#"{"prompt": "abcdefgh", "n_predict": 5}"#);
        assert_eq!((native.prompt_tokens, native.max_tokens, native.streams), (2, Some(5), false));
        assert_eq!(read(r#"{"n_predict": -1}"#).max_tokens, None);
        for body in [
            r#"{"inputs": "abcdefgh", "parameters": {"max_new_tokens": 5, "seed": 1}}"#,
            r#"{"text": "abcdefgh", "sampling_params": {"max_new_tokens": 5}}"#,
        ] {
            let asked = read(body);
            assert_eq!((asked.prompt_tokens, asked.max_tokens), (2, Some(5)), "{body}");
            assert_eq!(asked.body, body.as_bytes());
        }
        let form = r#"{"input": "abcd", "text": {"format": {"name": "abcdefgh"}}}"#;
        assert_eq!(read(form).prompt_tokens, 1);
    }
}
