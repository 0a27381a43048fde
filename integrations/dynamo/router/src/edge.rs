//! The router's public address, before Dynamo's own HTTP service on loopback: tells workers the
//! `max_tokens` that a client asked for, changes bodies where needed, and turns "no worker" into
//! 503 with Retry-After.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use trail_dynamo_proto::MAX_TOKENS_KEY;

use trail_dynamo_router::loads::Loads;

use crate::body::rewrite;
use crate::hints::Hints;

/// Longest body, bytes: Dynamo's own limit.
const MAX_BODY: usize = 45 << 20;

/// Seconds after which a client should try again: a worker that restarts takes about as long.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Dynamo's prefix of headers that become metadata of the request.
const METADATA: &str = "x-dynamo-meta-";

/// The proxy in front of Dynamo's HTTP service.
#[derive(Clone)]
pub struct Edge {
    inner: SocketAddr,
    client: Client<HttpConnector, Body>,
    loads: Arc<Loads>,
    /// `None` leaves it to the clients to say how long an answer they expect.
    hints: Option<Arc<Hints>>,
}

/// The members of a body that name its longest answer.
#[derive(Deserialize)]
struct Limits {
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
}

impl Edge {
    /// A proxy for the service at `inner`.
    pub fn new(inner: SocketAddr, loads: Arc<Loads>, hints: Option<Arc<Hints>>) -> Edge {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Edge { inner, client, loads, hints }
    }

    /// Its routes.
    pub fn routes(self) -> Router {
        Router::new().route("/trail/loads", get(list)).fallback(forward).with_state(self)
    }

    fn has_workers(&self) -> bool {
        self.loads.alive(Instant::now()) > 0
    }
}

/// The last report of every worker.
async fn list(State(edge): State<Edge>) -> Response {
    axum::Json(edge.loads.reports(Instant::now())).into_response()
}

/// Passes a request on, and its answer back as it comes.
async fn forward(State(edge): State<Edge>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(mut body) = to_bytes(body, MAX_BODY).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 45 MiB").into_response();
    };
    let generates = parts.uri.path().ends_with("completions");
    if generates && !edge.has_workers() {
        return no_worker();
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = format!("http://{}{path}", edge.inner).parse::<Uri>() else {
        return (StatusCode::BAD_REQUEST, "the path is not valid").into_response();
    };
    parts.uri = uri;
    let name = HeaderName::try_from(format!("{METADATA}{MAX_TOKENS_KEY}")).expect("is a name");
    parts.headers.remove(&name);
    if let Some(limit) = max_tokens(&body) {
        parts.headers.insert(name, limit.into());
    }
    if generates {
        let changed = rewrite(parts.uri.path(), &body, edge.hints.as_deref());
        body = changed.map_or(body, Bytes::from);
    }
    // The client sets them for the body that it sends.
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::TRANSFER_ENCODING);
    match edge.client.request(Request::from_parts(parts, Body::from(body))).await {
        Ok(answer) => {
            let mut answer = answer.map(Body::new);
            let status = answer.status();
            let failed = status == StatusCode::NOT_FOUND || status.is_server_error();
            if generates && failed && !edge.has_workers() {
                return no_worker();
            }
            if status == StatusCode::SERVICE_UNAVAILABLE {
                answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
            }
            answer
        }
        Err(error) => {
            tracing::warn!("Dynamo's HTTP service did not answer: {error}");
            no_worker()
        }
    }
}

fn max_tokens(body: &Bytes) -> Option<u32> {
    let limits: Limits = serde_json::from_slice(body).ok()?;
    limits.max_completion_tokens.or(limits.max_tokens)
}

/// The answer while no worker lives.
fn no_worker() -> Response {
    let body = serde_json::json!({"error": {
        "message": "no worker is alive: try again",
        "type": "service_unavailable",
        "code": 503,
    }});
    let headers = [(header::RETRY_AFTER, RETRY_AFTER)];
    (StatusCode::SERVICE_UNAVAILABLE, headers, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_name_of_the_limit_wins() {
        let of = |body: &str| max_tokens(&Bytes::copy_from_slice(body.as_bytes()));
        assert_eq!(of(r#"{"max_tokens": 5}"#), Some(5));
        assert_eq!(of(r#"{"max_tokens": 5, "max_completion_tokens": 6}"#), Some(6));
        assert_eq!(of(r#"{"messages": []}"#), None);
        assert_eq!(of("no json"), None);
    }
}
