//! `GET /v1/models`: the model by its names, its adapters, and the model of embeddings.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::adapters::ServedAdapter;
use crate::error::ApiError;
use crate::state::{ServerState, Shared};

/// A model by one of its names.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// vLLM's field: the name of responses, or the folder of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    /// vLLM's field: the model of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// vLLM's field: maximum length of prompt and answer together, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
}

/// The models.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

fn card(state: &ServerState, name: &str) -> ModelCard {
    let is_served = state.names.iter().any(|served| served == name);
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: state.created,
        owned_by: "trail-rt",
        root: is_served.then(|| state.name().to_owned()),
        parent: None,
        max_model_len: is_served.then_some(state.capacity),
    }
}

fn adapter_card(state: &ServerState, served: &Arc<ServedAdapter>) -> ModelCard {
    ModelCard {
        created: served.created,
        root: Some(served.of.folder.display().to_string()),
        parent: Some(state.name().to_owned()),
        max_model_len: Some(state.capacity),
        ..card(state, &served.of.name)
    }
}

/// Lists the model under each of its names, its adapters, and the model of embeddings.
pub(crate) async fn list(State(state): Shared) -> Json<ModelList> {
    let embedding = state.embedding.as_ref().map(|model| model.name.as_str());
    let adapters = state.adapters.all();
    let models = state.names.iter().map(|name| card(&state, name));
    let models = models.chain(adapters.iter().map(|served| adapter_card(&state, served)));
    let data = models.chain(embedding.map(|name| card(&state, name))).collect();
    Json(ModelList { object: "list", data })
}

/// Returns the model named `name`.
pub(crate) async fn retrieve(
    State(state): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    if let Some(served) = state.adapters.find(&name) {
        return Ok(Json(adapter_card(&state, &served)));
    }
    if state.embedding.as_ref().is_none_or(|model| model.name != name) {
        state.check_model(Some(&name))?;
    }
    Ok(Json(card(&state, &name)))
}
