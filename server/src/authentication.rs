//! The check of a request's API key and of its limits, before the body is read.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::Access;
use crate::body_limits::BodyLimits;
use crate::error::ApiError;
use crate::state::Shared;

/// Refuses a request without a key of the server, or over the limits of its key. Requests with a
/// body count, as they are those that cost.
pub(crate) async fn check(State(state): Shared, request: Request, next: Next) -> Response {
    let Some(keys) = &state.keys else { return next.run(request).await };
    let Some(key) = keys.of_request(request.headers()) else {
        return refuse(request, ApiError::no_key()).await;
    };
    let counts = request.method() == Method::POST;
    let (admitted, limits) = counts.then(|| key.rate.admit(Instant::now())).unzip();
    let mut response = match admitted {
        Some(Err(exceeded)) => refuse(request, ApiError::over_limit(&exceeded)).await,
        _ => {
            if let Some(access) = Access::of(&request) {
                access.set_key(key);
            }
            next.run(request).await
        }
    };
    if let Some(limits) = limits {
        limits.write(response.headers_mut());
    }
    response
}

/// The response to a refused request. A connection closed on unread bytes is reset, which loses the
/// response, so a body that is on its way is discarded; one that waits for `100 Continue` is not
/// sent at all.
async fn refuse(request: Request, refusal: ApiError) -> Response {
    if !request.headers().contains_key(EXPECT) {
        BodyLimits::discard(request).await;
    }
    refusal.into_response()
}
