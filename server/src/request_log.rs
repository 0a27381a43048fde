//! The access log.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use trail_cli::random;
use trail_platform::printable::printable_line;

use crate::access::Access;
use crate::connection::PassedOn;
use crate::dialect;
use crate::state::Shared;

/// Header of a request's id, in both directions.
const REQUEST_ID: &str = "x-request-id";
/// Longest id that a client may give, bytes.
const MAX_ID: usize = 128;

/// The id that the client gave, if it is one word, or else a random one.
fn id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_valid = |id: &&str| {
        (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(is_valid).map_or_else(random::id, str::to_owned)
}

/// Records each request, counts responses by status, and gives them the request's id.
pub(crate) async fn record(State(state): Shared, mut request: Request, next: Next) -> Response {
    let line = || {
        let (method, path) = (request.method(), request.uri().path());
        (method.to_string(), printable_line(path).into_owned())
    };
    let line = state.verbose.then(line);
    let access = Arc::new(Access::begin(id(request.headers()), line));
    request.extensions_mut().insert(access.clone());
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    response = dialect::restated(&path, &access.id, response);
    // Another server's answer keeps the id that it has.
    let is_named = response.extensions().get::<PassedOn>().is_some()
        && response.headers().contains_key(REQUEST_ID);
    if let Ok(id) = HeaderValue::try_from(&access.id)
        && !is_named
    {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let status = response.status().as_u16();
    access.responded(status);
    state.metrics.responded(status);
    response
}
