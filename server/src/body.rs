//! Request bodies: JSON (`request_head` checks its type). Unknown fields are skipped by the parser,
//! but for changes of the policy; errors name the field.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use crate::body_permit::BodyPermit;
use crate::error::ApiError;
use crate::number::integer_beyond_64_bits;
use crate::state::ServerState;
use crate::unsupported::{Field, refuse_unsupported};

/// U+FEFF in UTF-8, which some clients send before JSON.
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Most digits of an integer in a message.
const MAX_SHOWN: usize = 40;

/// The text of a JSON object. No values are built of it but those that are [`Body::read`].
#[derive(Debug)]
pub(crate) struct Body(Bytes);

impl Body {
    /// A body of `bytes`, without a byte-order mark.
    pub(crate) fn new(bytes: Bytes) -> Self {
        match bytes.starts_with(BOM) {
            true => Body(bytes.slice(BOM.len()..)),
            false => Body(bytes),
        }
    }

    /// Refuses what is no JSON object, and fields that are not supported on this endpoint (`more`)
    /// or on any.
    pub(crate) fn check(&self, more: &[Field]) -> Result<(), ApiError> {
        refuse_unsupported(&self.0, more)
    }

    /// Refuses integers that a float would stand for: a template would write another number.
    pub(crate) fn check_integers(&self) -> Result<(), ApiError> {
        match integer_beyond_64_bits(&self.0) {
            Some(integer) => {
                let integer: String = integer.chars().take(MAX_SHOWN).collect();
                Err(ApiError::invalid(format!(
                    "the integer {integer} has more than 64 bits: send it as a string"
                )))
            }
            None => Ok(()),
        }
    }

    /// Deserializes the fields of `T`. Each handler reads several structs from one body, as serde's
    /// `flatten` loses the name of the field at fault.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let deserializer = &mut serde_json::Deserializer::from_slice(&self.0);
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            let (path, message) =
                (error.path().to_string(), in_json_words(&error.inner().to_string()));
            let missing = message.strip_prefix("missing field `");
            let missing = missing.and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
            match (path.as_str(), missing) {
                (".", None) => ApiError::invalid(message),
                (".", Some(name)) => ApiError::invalid_field(name, &message),
                _ => ApiError::invalid_field(&path, format!("'{path}': {message}")),
            }
        })
    }
}

/// An error of serde's about a value, in the terms of JSON.
fn in_json_words(error: &str) -> String {
    let error = error.rsplit_once(" at line ").map_or(error, |(error, _)| error);
    // Of a name among a few, which is a string.
    if error == "expected value" {
        return "expected a string".to_owned();
    }
    let (found, expected) = match error.rsplit_once(", expected ") {
        None => return error.to_owned(),
        Some(parts) => parts,
    };
    let kinds = [
        ("map", "an object"),
        ("sequence", "an array"),
        ("floating point", "number"),
        ("integer", "number"),
    ];
    let found = ["invalid type: ", "invalid value: "].into_iter().find_map(|prefix| {
        let value = found.strip_prefix(prefix)?;
        let kind = kinds.iter().find_map(|(kind, name)| Some((name, value.strip_prefix(kind)?)));
        Some(kind.map_or_else(|| value.to_owned(), |(name, rest)| format!("{name}{rest}")))
    });
    let expected = match expected {
        "a sequence" => "an array",
        "a map" => "an object",
        expected => expected,
    };
    match found {
        Some(found) => format!("expected {expected}, not {found}"),
        None => error.replacen("unknown variant", "unknown value", 1),
    }
}

/// The bytes of a body, with their share of what the server reads and parses at once.
pub(crate) struct Admitted {
    bytes: Vec<u8>,
    permit: BodyPermit,
}

impl Admitted {
    /// Reads fields of the body, off the connection's thread if the body is large. The permit is to
    /// be held until the text of the fields is tokenized.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(&Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, BodyPermit), ApiError> {
        let Admitted { bytes, permit } = self;
        let body = Body::new(bytes.into());
        let (fields, permit) = match permit.is_large() {
            true => permit.run(move |_| read(&body)).await?,
            false => (read(&body), permit),
        };
        Ok((fields?, permit))
    }
}

impl FromRequest<Arc<ServerState>> for Admitted {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<ServerState>) -> Result<Self, ApiError> {
        let (bytes, permit) = state.body_limits.receive(request, &state.lifecycle).await?;
        Ok(Admitted { bytes, permit })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[derive(serde::Deserialize, Debug)]
    struct Fields {
        #[allow(dead_code)]
        prompt: String,
        #[allow(dead_code)]
        temperature: Option<f32>,
    }

    fn read(text: &str) -> Result<Fields, ApiError> {
        let body = Body::new(Bytes::copy_from_slice(text.as_bytes()));
        body.check(&[])?;
        body.read()
    }

    fn refused(text: &str) -> Value {
        read(text).expect_err("refused").body()["error"].clone()
    }

    #[test]
    fn the_field_at_fault_is_named() {
        assert_eq!(refused(r#"{"prompt": "", "temperature": "warm"}"#)["param"], "temperature");
        assert_eq!(refused("{}")["param"], "prompt");
        assert_eq!(refused("[]")["param"], Value::Null);
        for text in ["", "{", "{} {}", r#"{"prompt": "a"} x"#] {
            assert!(refused(text)["message"].to_string().contains("not JSON"), "{text}");
        }
    }

    #[test]
    fn errors_have_the_words_of_json() {
        for (error, words) in [
            (
                "invalid type: floating point `1.5`, expected a whole number from 0 to 20 at line 1 column 9",
                "expected a whole number from 0 to 20, not number `1.5`",
            ),
            ("invalid type: map, expected a sequence", "expected an array, not an object"),
            (
                "invalid type: string \"a, expected b\", expected a boolean",
                "expected a boolean, not string \"a, expected b\"",
            ),
            ("unknown variant `x`, expected `text`", "unknown value `x`, expected `text`"),
            ("missing field `role` at line 1 column 20", "missing field `role`"),
            ("expected value at line 1 column 20", "expected a string"),
        ] {
            assert_eq!(in_json_words(error), words);
        }
    }

    #[test]
    fn a_bom_is_no_error() {
        assert!(read("\u{FEFF}{\"prompt\": \"a\"}").is_ok());
        assert!(read("\u{FEFF}\u{FEFF}{\"prompt\": \"a\"}").is_err());
    }
}
