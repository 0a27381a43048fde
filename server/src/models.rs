//! `GET /v1/models`: the model by its names, and that of embeddings.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::{ServerState, Shared};

fn card(state: &ServerState, name: &str) -> Value {
    let card = json!({
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "trail-rt",
    });
    if state.names.iter().all(|served| served != name) {
        return card;
    }
    let mut card = card;
    // vLLM's fields: the name of responses, and the maximum length of prompt and answer together,
    // tokens.
    card["root"] = json!(state.name());
    card["max_model_len"] = json!(state.capacity);
    card
}

/// Lists the model under each of its names, and that of embeddings.
pub(crate) async fn list(State(state): Shared) -> Json<Value> {
    let embedding = state.embedding.as_ref().map(|model| model.name.as_str());
    let names = state.names.iter().map(String::as_str).chain(embedding);
    let cards: Vec<Value> = names.map(|name| card(&state, name)).collect();
    Json(json!({ "object": "list", "data": cards }))
}

/// Returns the model named `name`.
pub(crate) async fn retrieve(
    State(state): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    if state.embedding.as_ref().is_none_or(|model| model.name != name) {
        state.check_model(Some(&name))?;
    }
    Ok(Json(card(&state, &name)))
}
