//! `GET /v1/models`: the one model.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::{ServerState, Shared};

fn card(state: &ServerState) -> Value {
    json!({
        "id": state.name,
        "object": "model",
        "created": state.created,
        "owned_by": "trail-rt",
        // vLLM's field: maximum length of prompt and answer together, tokens.
        "max_model_len": state.capacity,
    })
}

/// Lists the models.
pub(crate) async fn list(State(state): Shared) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&state)] }))
}

/// Returns the model named `name`.
pub(crate) async fn retrieve(
    State(state): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    state.check_model(Some(&name))?;
    Ok(Json(card(&state)))
}
