//! `/v1/models`: the models by their names, their adapters, and the model of embeddings; and the
//! endpoints that load and unload a model.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::access::Access;
use crate::adapters::ServedAdapter;
use crate::body::{Admitted, Body};
use crate::error::ApiError;
use crate::model_entry::{ModelEntry, ModelState};
use crate::openapi::Schemas;
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
    /// Of a model: a request for one that is not loaded waits until it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<ModelState>,
}

/// The models.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

/// A model without an engine: that of embeddings.
fn card(state: &ServerState, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: state.created,
        owned_by: "trail-rt",
        root: None,
        parent: None,
        max_model_len: None,
        state: None,
    }
}

fn model_card(state: &ServerState, entry: &ModelEntry, name: &str) -> ModelCard {
    ModelCard {
        root: Some(entry.name().to_owned()),
        max_model_len: Some(entry.capacity),
        state: Some(entry.state()),
        ..card(state, name)
    }
}

fn adapter_card(state: &ServerState, entry: &ModelEntry, served: &ServedAdapter) -> ModelCard {
    ModelCard {
        created: served.created,
        root: Some(served.of.folder.display().to_string()),
        parent: Some(entry.name().to_owned()),
        max_model_len: Some(entry.capacity),
        ..card(state, &served.of.name)
    }
}

/// Lists each model under each of its names, its adapters, and the model of embeddings.
pub(crate) async fn list(State(state): Shared) -> Json<ModelList> {
    let mut data = Vec::new();
    for entry in state.models.all() {
        data.extend(entry.names.iter().map(|name| model_card(&state, entry, name)));
        let adapters = entry.adapters.all();
        data.extend(adapters.iter().map(|served| adapter_card(&state, entry, served)));
    }
    data.extend(state.embedding.as_ref().map(|model| card(&state, &model.name)));
    Json(ModelList { object: "list", data })
}

/// Returns the model named `name`.
pub(crate) async fn retrieve(
    State(state): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    if state.embedding.as_ref().is_some_and(|model| model.name == name) {
        return Ok(Json(card(&state, &name)));
    }
    let entry = state.models.find(Some(&name))?;
    Ok(Json(match entry.adapters.find(&name) {
        Some(served) => adapter_card(&state, entry, &served),
        None => model_card(&state, entry, &name),
    }))
}

/// The body of `POST /v1/load_model` and `/v1/unload_model`.
#[derive(Deserialize, ToSchema)]
struct Change {
    /// One of the model's names.
    model: String,
}

/// The schema of a request that loads or unloads a model.
pub(crate) fn change_request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Change>()];
    schemas.request("ChangeModelRequest", parts, &[])
}

/// The model that a request is to change, and its name there.
async fn to_change(
    state: &ServerState,
    access: &Access,
    admitted: Admitted,
) -> Result<(Arc<ModelEntry>, String), ApiError> {
    access.check_admin("models")?;
    let (Change { model: name }, _) = admitted.read(|body: &Body| body.read()).await?;
    let entry = state.models.find(Some(&name))?;
    if !entry.has_name(&name) {
        return Err(ApiError::invalid_field("model", "an adapter, not a model"));
    }
    Ok((entry.clone(), name))
}

/// Loads a model, if it is not loaded.
pub(crate) async fn load(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<String, ApiError> {
    let (_, name) = to_change(&state, &access, admitted).await?;
    state.model(Some(&name)).await?;
    Ok(format!("Success: model '{name}' is loaded."))
}

/// Unloads a model after its running requests. The next request loads it again.
pub(crate) async fn unload(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<String, ApiError> {
    let (entry, name) = to_change(&state, &access, admitted).await?;
    entry.unload().await;
    Ok(format!("Success: model '{name}' was unloaded."))
}
