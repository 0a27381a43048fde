//! Request bodies: JSON (`request_head` checks its type). Unknown fields are skipped by the parser,
//! errors name the field.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use crate::body_limits::BodyPermit;
use crate::error::ApiError;
use crate::state::ServerState;
use crate::unsupported::{Field, refuse_unsupported};

/// U+FEFF in UTF-8, which some clients send before JSON.
const BOM: &[u8] = b"\xEF\xBB\xBF";

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

    /// Deserializes the fields of `T`. Each handler reads several structs from one body, as serde's
    /// `flatten` loses the name of the field at fault.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let deserializer = &mut serde_json::Deserializer::from_slice(&self.0);
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            let (path, message) = (error.path().to_string(), error.inner().to_string());
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
    fn a_bom_is_no_error() {
        assert!(read("\u{FEFF}{\"prompt\": \"a\"}").is_ok());
        assert!(read("\u{FEFF}\u{FEFF}{\"prompt\": \"a\"}").is_err());
    }
}
