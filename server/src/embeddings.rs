//! `POST /v1/embeddings`, by an encoder beside the served model.

use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trail_cli::Error;
use trail_encoder::{Encoder, pooling_of};
use utoipa::ToSchema;

use crate::body::{Admitted, Body};
use crate::body_permit::HasLeft;
use crate::error::ApiError;
use crate::number::Count;
use crate::openapi::Schemas;
use crate::prompt::Prompt;
use crate::state::Shared;
use crate::unsupported::{Field, Neutral};

/// Inputs of one request at the most, as in OpenAI's interface.
const MAX_INPUTS: usize = 2048;

/// Fields that would change the vectors and are not supported.
const UNSUPPORTED: [Field; 4] = [
    ("add_special_tokens", Neutral::True),
    ("messages", Neutral::Null),
    ("normalize", Neutral::True),
    ("prompt_logprobs", Neutral::Null),
];

/// The encoder, and its name in requests.
pub(crate) struct EmbeddingModel {
    /// Name of its folder.
    pub name: String,
    encoder: Encoder,
}

impl EmbeddingModel {
    /// The encoder in `folder`, with the pooling that the folder names.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let invalid = |error: trail_encoder::EncoderError| {
            Error::usage(format!("--embedding-model: {error}"))
        };
        let encoder = Encoder::open(folder, pooling_of(folder).map_err(invalid)?);
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "embedding".to_owned());
        Ok(EmbeddingModel { name, encoder: encoder.map_err(invalid)? })
    }

    /// The vectors of `inputs`, of length 1, and the number of all tokens.
    fn embed(&self, inputs: Inputs, has_left: HasLeft) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
        let invalid = |error: trail_encoder::EncoderError| {
            ApiError::invalid_field("input", error.to_string())
        };
        let ids: Vec<Vec<u32>> = match inputs {
            Prompt::Ids(ids) => ids,
            Prompt::Texts(texts) => {
                let ids = texts.iter().map(|text| self.encoder.encode(text).map_err(invalid));
                ids.collect::<Result<_, _>>()?
            }
        };
        let tokens = ids.iter().map(Vec::len).sum();
        let mut vectors = Vec::with_capacity(ids.len());
        for ids in &ids {
            if has_left() {
                return Err(ApiError::interrupted());
            }
            vectors.push(normalised(self.encoder.embed_ids(ids).map_err(invalid)?));
        }
        Ok((vectors, tokens))
    }
}

/// The vector at length 1; a vector of zeros has no direction, and stays.
fn normalised(mut vector: Vec<f32>) -> Vec<f32> {
    let square: f64 = vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    if square > 0.0 {
        let scale = square.sqrt().recip();
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
    }
    vector
}

/// Texts, or their token ids.
type Inputs = Prompt<MAX_INPUTS>;

#[derive(Deserialize, ToSchema)]
struct Fields {
    model: Option<String>,
    input: Inputs,
    encoding_format: Option<Encoding>,
    dimensions: Option<Count>,
}

#[derive(Deserialize, ToSchema, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    Float,
    Base64,
}

impl Encoding {
    /// The vector as numbers, or as base64 of little-endian f32.
    fn write(self, vector: &[f32]) -> Value {
        match self {
            Encoding::Float => json!(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                json!(STANDARD.encode(bytes))
            }
        }
    }
}

/// The schema of a request.
pub(crate) fn request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Fields>()];
    schemas.request("EmbeddingRequest", parts, &[])
}

/// The vectors of a request's inputs.
#[derive(Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Serialize, ToSchema)]
struct Embedding {
    object: &'static str,
    index: usize,
    /// Numbers, or base64 of little-endian f32.
    embedding: Value,
}

#[derive(Serialize, ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The handler.
pub(crate) async fn create(
    State(state): Shared,
    admitted: Admitted,
) -> Result<Json<EmbeddingList>, ApiError> {
    state.check_open()?;
    let read = |body: &Body| body.check(&UNSUPPORTED).and_then(|()| body.read::<Fields>());
    let (fields, permit) = admitted.read(read).await?;
    let Some(model) = state.embedding.clone() else {
        return Err(ApiError::no_embedding_model());
    };
    if let Some(name) = fields.model.filter(|name| *name != model.name) {
        return Err(ApiError::no_such_model(&name, &model.name));
    }
    let width = model.encoder.width();
    if fields.dimensions.is_some_and(|asked| asked.get() as usize != width) {
        let message = format!("the vectors of '{}' have {width} dimensions", model.name);
        return Err(ApiError::invalid_field("dimensions", message));
    }
    let name = model.name.clone();
    let (input, model) = (fields.input, Arc::clone(&model));
    let (embedded, _) = permit.run(move |has_left| model.embed(input, has_left)).await?;
    let (vectors, tokens) = embedded?;
    if vectors.is_empty() {
        return Err(ApiError::invalid_field("input", "there is no input: give at least one"));
    }
    let encoding = fields.encoding_format.unwrap_or(Encoding::Float);
    let data = vectors.iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: encoding.write(vector),
    });
    Ok(Json(EmbeddingList {
        object: "list",
        data: data.collect(),
        model: name,
        usage: EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_1_and_base64_has_their_bytes() {
        assert_eq!(normalised(vec![3.0, -4.0]), [0.6, -0.8]);
        assert_eq!(normalised(vec![0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(Encoding::Base64.write(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(Encoding::Float.write(&[1.0, -2.0]), json!([1.0, -2.0]));
    }
}
