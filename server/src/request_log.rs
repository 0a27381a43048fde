//! The access log.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use trail_platform::printable::printable_line;

use crate::access::Access;
use crate::state::Shared;

/// Records each request, and counts responses by status.
pub(crate) async fn record(State(state): Shared, mut request: Request, next: Next) -> Response {
    let line = || {
        let (method, path) = (request.method(), request.uri().path());
        format!("{method} {}", printable_line(path))
    };
    let access = Arc::new(Access::begin(state.verbose.then(line)));
    request.extensions_mut().insert(access.clone());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    access.responded(status);
    state.metrics.responded(status);
    response
}
