//! Request bodies: JSON of any content type. Unknown fields are ignored, errors name the field.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use super::intake::BodyPermit;
use super::state::ServerState;

/// Fields that would change the answer and are not supported. They are rejected: ignoring them
/// would silently give another answer than requested.
const UNSUPPORTED: [&str; 9] = [
    "audio",
    "best_of",
    "echo",
    "functions",
    "logit_bias",
    "modalities",
    "response_format",
    "suffix",
    "tools",
];

/// A JSON object. Unknown fields are ignored.
#[derive(Debug)]
pub struct Body(Value);

impl Body {
    fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
        let Some(fields) = value.as_object() else {
            return Err(ApiError::invalid("the body is not a JSON object"));
        };
        let unsupported = |name: &&&str| fields.get(**name).is_some_and(|value| !is_neutral(value));
        match UNSUPPORTED.iter().find(unsupported) {
            Some(name) => {
                let message = format!("'{name}' is not supported: leave it out");
                Err(ApiError::invalid_field(*name, message))
            }
            None => Ok(Body(value)),
        }
    }

    /// Deserializes the fields of `T`. Each handler reads several structs from one body, as serde's
    /// `flatten` loses the name of the field at fault.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(&self.0).map_err(|error| {
            let path = error.path().to_string();
            match path.as_str() {
                "." => ApiError::invalid(error.inner().to_string()),
                _ => ApiError::invalid_field(&path, format!("'{path}': {}", error.inner())),
            }
        })
    }
}

/// Returns true for values that request the default: null, false, 1, empty or plain text.
fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_u64() == Some(1),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(|item| item == "text"),
        Value::Object(fields) => fields.values().all(|value| value == "text"),
    }
}

/// The bytes of a body, with their share of what the server reads and parses at once.
pub struct Admitted {
    bytes: Vec<u8>,
    permit: BodyPermit,
}

impl Admitted {
    /// Parses the body and reads its fields, off the connection's thread if the body is large. The
    /// permit is to be held until the text of the fields is tokenized.
    pub async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(&Body) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, BodyPermit), ApiError> {
        let Admitted { bytes, permit } = self;
        let parse = move || read(&Body::parse(&bytes)?);
        let (fields, permit) = match permit.is_large() {
            true => permit.run(|_| parse()).await?,
            false => (parse(), permit),
        };
        Ok((fields?, permit))
    }
}

impl FromRequest<Arc<ServerState>> for Admitted {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<ServerState>) -> Result<Self, ApiError> {
        let (bytes, permit) = state.intake.receive(request, &state.lifecycle).await?;
        Ok(Admitted { bytes, permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    struct Fields {
        #[allow(dead_code)]
        temperature: Option<f32>,
    }

    fn refused(text: &str) -> Value {
        let fields = Body::parse(text.as_bytes()).and_then(|body| body.read::<Fields>());
        fields.expect_err("refused").body()["error"].clone()
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let error = refused(r#"{"temperature": "warm"}"#);
        assert_eq!(error["param"], "temperature");
        assert_eq!(refused("[]")["param"], Value::Null);
        assert!(refused("{").to_string().contains("not JSON"));
    }

    #[test]
    fn unsupported_fields_are_refused_unless_they_ask_for_nothing() {
        assert_eq!(refused(r#"{"echo": true}"#)["param"], "echo");
        assert_eq!(
            refused(r#"{"response_format": {"type": "json_object"}}"#)["param"],
            "response_format"
        );
        let neutral = r#"{"echo": false, "best_of": 1, "tools": [], "logit_bias": {}, "user": "me",
                         "suffix": null, "response_format": {"type": "text"}, "modalities": ["text"]}"#;
        assert!(Body::parse(neutral.as_bytes()).is_ok());
    }
}
