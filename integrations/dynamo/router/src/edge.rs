//! The router's public address, before Dynamo's own HTTP service on loopback: tells workers the
//! `max_tokens` that a client asked for, changes bodies where needed, and turns "no worker" into
//! 503 with Retry-After.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Names of the models that answered.
    models: Arc<Mutex<HashSet<String>>>,
}

/// The members of a body that name its model and its longest answer.
#[derive(Deserialize)]
struct Limits {
    model: Option<String>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
}

impl Edge {
    /// A proxy for the service at `inner`.
    pub fn new(inner: SocketAddr, loads: Arc<Loads>, hints: Option<Arc<Hints>>) -> Edge {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Edge { inner, client, loads, hints, models: Arc::default() }
    }

    /// Its routes.
    pub fn routes(self) -> Router {
        Router::new().route("/trail/loads", get(list)).fallback(forward).with_state(self)
    }

    /// True if an answer of `status` failed for want of a worker. A model that answered before has
    /// lost its last worker where Dynamo does not find it any more.
    fn lacks_worker(&self, status: StatusCode, model: Option<String>) -> bool {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        match model {
            Some(model) if status.is_success() => {
                models.insert(model);
            }
            Some(model) if status == StatusCode::NOT_FOUND && models.contains(&model) => {
                return true;
            }
            _ => {}
        }
        let failed = status == StatusCode::NOT_FOUND || status.is_server_error();
        // Workers that do not report may live: their successes are not looked at.
        failed && self.loads.alive(Instant::now()) == 0
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
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = format!("http://{}{path}", edge.inner).parse::<Uri>() else {
        return (StatusCode::BAD_REQUEST, "the path is not valid").into_response();
    };
    parts.uri = uri;
    let name = HeaderName::try_from(format!("{METADATA}{MAX_TOKENS_KEY}")).expect("is a name");
    parts.headers.remove(&name);
    let limits = serde_json::from_slice::<Limits>(&body).ok();
    if let Some(limit) = limits.as_ref().and_then(max_tokens) {
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
            let model = limits.and_then(|limits| limits.model);
            if generates && edge.lacks_worker(status, model) {
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

fn max_tokens(limits: &Limits) -> Option<u32> {
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
        let of = |body: &str| max_tokens(&serde_json::from_str(body).ok()?);
        assert_eq!(of(r#"{"max_tokens": 5}"#), Some(5));
        assert_eq!(of(r#"{"max_tokens": 5, "max_completion_tokens": 6}"#), Some(6));
        assert_eq!(of(r#"{"messages": []}"#), None);
        assert_eq!(of("no json"), None);
    }
}
