//! The check of a request's API key and of its limits, before the body is read.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;

use crate::access::Access;
use crate::api_keys::ApiKey;
use crate::body_limits::BodyLimits;
use crate::error::ApiError;
use crate::rate_limit::RateState;
use crate::state::Shared;

/// Refuses a request without a key of the server, or over the limits of its key. Requests with a
/// body count, as they are those that cost.
pub(crate) async fn check(
    State(state): Shared,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Some(keys) = &state.keys else { return Ok(next.run(request).await) };
    let Some(key) = keys.of_request(request.headers()) else {
        return Ok(refuse(request, ApiError::no_key(), None).await);
    };
    let state = match admit(&key, request.method()) {
        Ok(state) => state,
        Err((refusal, state)) => return Ok(refuse(request, refusal, Some(state)).await),
    };
    if let Some(access) = Access::of(&request) {
        access.set_key(key);
    }
    let mut response = next.run(request).await;
    if let Some(state) = state {
        state.write(response.headers_mut());
    }
    Ok(response)
}

/// Counts a request; the state of its limits if it has some.
fn admit(key: &ApiKey, method: &Method) -> Result<Option<RateState>, (ApiError, RateState)> {
    if method != Method::POST {
        return Ok(None);
    }
    match key.rate.admit(Instant::now()) {
        (Ok(()), state) => Ok(Some(state)),
        (Err(exceeded), state) => Err((ApiError::over_limit(&exceeded), state)),
    }
}

/// The response to a refused request. A connection closed on unread bytes is reset, which loses the
/// response, so a body that is on its way is discarded; one that waits for `100 Continue` is not
/// sent at all.
async fn refuse(request: Request, refusal: ApiError, state: Option<RateState>) -> Response {
    if !request.headers().contains_key(EXPECT) {
        BodyLimits::discard(request).await;
    }
    let mut response = axum::response::IntoResponse::into_response(refusal);
    if let Some(state) = state {
        state.write(response.headers_mut());
    }
    response
}
