//! The endpoint `/metrics`.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus::TEXT_FORMAT;

use crate::error::ApiError;
use crate::state::Shared;

/// Returns the metrics in Prometheus's text format.
pub(crate) async fn scrape(State(state): Shared) -> Result<Response, ApiError> {
    let models: Vec<_> = state.models.all().iter().map(|entry| entry.report()).collect();
    let text = state.metrics.text(&models).map_err(|_| ApiError::interrupted())?;
    Ok(([(CONTENT_TYPE, TEXT_FORMAT)], text).into_response())
}
