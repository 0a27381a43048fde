//! Request fields that would change the answer and are not supported. They are refused unless they
//! ask for nothing: ignoring them would silently give another answer than requested.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::ApiError;

/// The value of a field that asks for nothing; so does null.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neutral {
    /// Only null.
    Null,
    /// `false`.
    False,
    /// `true`.
    True,
    /// 0.
    Zero,
    /// 1.
    One,
    /// `""`.
    EmptyText,
    /// `[]`.
    EmptyList,
    /// `{}`.
    EmptyMap,
    /// `["text"]`.
    TextList,
    /// `{"type": "disabled"}`.
    DisabledType,
    /// `"none"`, or `"auto"`, as there are no tools.
    NoTool,
}

/// A field that is not supported, with the value that it can have nevertheless.
pub(crate) type Field = (&'static str, Neutral);

/// Fields of OpenAI, vLLM, SGLang and llama.cpp, on both endpoints.
const FIELDS: [Field; 41] = [
    ("adapter", Neutral::Null),
    ("audio", Neutral::Null),
    ("best_of", Neutral::One),
    ("chat_template", Neutral::Null),
    ("custom_logit_processor", Neutral::Null),
    ("dry_multiplier", Neutral::Zero),
    ("dynatemp_range", Neutral::Zero),
    ("enable_thinking", Neutral::Null),
    ("function_call", Neutral::NoTool),
    ("functions", Neutral::EmptyList),
    ("guided_whitespace_pattern", Neutral::Null),
    ("kv_transfer_params", Neutral::Null),
    ("length_penalty", Neutral::One),
    ("logits_processors", Neutral::EmptyList),
    ("lora", Neutral::EmptyList),
    ("lora_path", Neutral::Null),
    ("mirostat", Neutral::Zero),
    ("mm_processor_kwargs", Neutral::EmptyMap),
    ("modalities", Neutral::TextList),
    ("n_predict", Neutral::Null),
    ("n_probs", Neutral::Zero),
    ("no_stop_trim", Neutral::False),
    ("prompt_embeds", Neutral::Null),
    ("reasoning", Neutral::Null),
    ("reasoning_effort", Neutral::Null),
    ("repeat_penalty", Neutral::One),
    ("return_tokens_as_token_ids", Neutral::False),
    ("samplers", Neutral::Null),
    ("session_params", Neutral::Null),
    ("stop_regex", Neutral::Null),
    ("structural_tag", Neutral::Null),
    ("suffix", Neutral::EmptyText),
    ("thinking", Neutral::Null),
    ("truncate_prompt_tokens", Neutral::Null),
    ("truncate_sequence", Neutral::False),
    ("typical_p", Neutral::One),
    ("use_beam_search", Neutral::False),
    ("verbosity", Neutral::Null),
    ("vllm_xargs", Neutral::EmptyMap),
    ("web_search_options", Neutral::Null),
    ("xtc_probability", Neutral::Zero),
];

/// Refuses a body, `json`, with a field of [`FIELDS`] or `more` that asks for something. All other
/// fields are skipped by the parser.
pub(crate) fn refuse_unsupported(json: &[u8], more: &[Field]) -> Result<(), ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let found = deserializer.deserialize_any(Object { more });
    let found = found.and_then(|found| deserializer.end().map(|()| found));
    match found {
        Ok(None) => Ok(()),
        Ok(Some(name)) => {
            let message = format!("'{name}' is not supported: leave it out");
            Err(ApiError::invalid_field(name, message))
        }
        Err(error) if error.is_data() => Err(ApiError::invalid("the body is not a JSON object")),
        Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
    }
}

/// Finds the first field of an object that is not supported and asks for something.
struct Object<'a> {
    more: &'a [Field],
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = map.next_key()? {
            let fields = self.more.iter().chain(&FIELDS);
            match fields.clone().find(|field| field.0 == name) {
                Some(&(field, neutral)) => {
                    let asks = !map.next_value::<Shape>()?.is(neutral);
                    found = found.or(asks.then_some(field));
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// A field's name, borrowed from the body where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value as far as it decides if something is requested. Its size is fixed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Null,
    Bool(bool),
    Number(f64),
    EmptyText,
    /// `"text"`.
    Text,
    NoTool,
    EmptyList,
    TextList,
    EmptyMap,
    /// `"disabled"`.
    Disabled,
    DisabledType,
    Other,
}

impl Shape {
    fn is(self, neutral: Neutral) -> bool {
        let expected = match neutral {
            Neutral::Null => Shape::Null,
            Neutral::False => Shape::Bool(false),
            Neutral::True => Shape::Bool(true),
            Neutral::Zero => Shape::Number(0.0),
            Neutral::One => Shape::Number(1.0),
            Neutral::EmptyText => Shape::EmptyText,
            Neutral::EmptyList => Shape::EmptyList,
            Neutral::EmptyMap => Shape::EmptyMap,
            Neutral::TextList => Shape::TextList,
            Neutral::DisabledType => Shape::DisabledType,
            Neutral::NoTool => Shape::NoTool,
        };
        self == Shape::Null || self == expected
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Shape, E> {
        Ok(Shape::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Shape, E> {
        Ok(Shape::Number(value as f64))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Shape, E> {
        Ok(Shape::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Shape, E> {
        Ok(Shape::Number(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Shape, E> {
        Ok(match text {
            "" => Shape::EmptyText,
            "text" => Shape::Text,
            "disabled" => Shape::Disabled,
            "none" | "auto" => Shape::NoTool,
            _ => Shape::Other,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let Some(first) = items.next_element::<Shape>()? else { return Ok(Shape::EmptyList) };
        let mut shape = if first == Shape::Text { Shape::TextList } else { Shape::Other };
        while items.next_element::<IgnoredAny>()?.is_some() {
            shape = Shape::Other;
        }
        Ok(shape)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut shape = Shape::EmptyMap;
        while let Some(Name(name)) = map.next_key()? {
            let value = map.next_value::<Shape>()?;
            let is_type = shape == Shape::EmptyMap && name == "type";
            shape = match value {
                Shape::Disabled if is_type => Shape::DisabledType,
                _ => Shape::Other,
            };
        }
        Ok(shape)
    }
}

/// A value of a message that must ask for nothing.
pub(crate) fn is_neutral<'de, D: Deserializer<'de>>(
    deserializer: D,
    neutral: Neutral,
) -> Result<bool, D::Error> {
    Shape::deserialize(deserializer).map(|shape| shape.is(neutral))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> Option<String> {
        let error = refuse_unsupported(json.as_bytes(), &[("echo", Neutral::False)]).err()?;
        error.body()["error"]["param"].as_str().map(str::to_owned)
    }

    #[test]
    fn fields_that_ask_for_nothing_pass() {
        let neutral = r#"{"echo": false, "best_of": 1, "functions": [], "mirostat": 0, "user": "me",
            "suffix": null, "modalities": ["text"], "function_call": "auto", "vllm_xargs": {},
            "length_penalty": 1.0, "junk": [{"a": [1, "x"]}]}"#;
        assert_eq!(refused(neutral), None);
        for (name, _) in FIELDS {
            assert_eq!(refused(&format!(r#"{{"{name}": null}}"#)), None);
        }
    }

    #[test]
    fn all_others_and_wrong_types_are_refused_by_name() {
        for (name, _) in FIELDS {
            for value in ["7", "\"x\"", "[\"x\"]", "{\"x\": 1}"] {
                let body = format!(r#"{{"a": 1, "{name}": {value}}}"#);
                assert_eq!(refused(&body).as_deref(), Some(name), "{body}");
            }
        }
        for (body, name) in [
            (r#"{"echo": true}"#, "echo"),
            (r#"{"echo": 1}"#, "echo"),
            (r#"{"echo": 0}"#, "echo"),
            (r#"{"vllm_xargs": 1}"#, "vllm_xargs"),
            (r#"{"vllm_xargs": []}"#, "vllm_xargs"),
            (r#"{"functions": ["text"]}"#, "functions"),
            (r#"{"functions": {}}"#, "functions"),
            (r#"{"modalities": ["text", "audio"]}"#, "modalities"),
            (r#"{"function_call": "required"}"#, "function_call"),
            (r#"{"mirostat": 15}"#, "mirostat"),
            (r#"{"functi\u006fns": [{}]}"#, "functions"),
        ] {
            assert_eq!(refused(body).as_deref(), Some(name), "{body}");
        }
    }
}
