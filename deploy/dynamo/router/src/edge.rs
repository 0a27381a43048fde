//! The router's public address, before Dynamo's own HTTP service on loopback: passes on what the
//! workers can answer, tells them the `max_tokens` that a client asked for, changes bodies where
//! needed, and turns "no worker" into 503 with Retry-After.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use trail_dynamo_proto::MAX_TOKENS_KEY;

use trail_dynamo_router::loads::Loads;

use crate::body::{Rewritten, rewrite};
use crate::hints::Hints;
use crate::intake::{Intake, Refusal};

/// Seconds after which a client should try again: a worker that restarts takes about as long.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Dynamo's prefix of headers that become metadata of the request.
const METADATA: &str = "x-dynamo-meta-";

/// Paths of Dynamo's that are read. Beside them it has `/v1/responses`, whose streams do not count
/// heartbeats as signs of life, and more that no worker here answers.
const READ: [&str; 5] = ["/v1/models", "/v1/models/{*name}", "/health", "/live", "/metrics"];

/// The proxy in front of Dynamo's HTTP service.
#[derive(Clone)]
pub struct Edge {
    inner: SocketAddr,
    client: Client<HttpConnector, Body>,
    loads: Arc<Loads>,
    /// `None` leaves it to the clients to say how long an answer they expect.
    hints: Option<Arc<Hints>>,
    intake: Arc<Intake>,
    /// Names of the models that answered.
    models: Arc<Mutex<HashSet<String>>>,
}

impl Edge {
    /// A proxy for the service at `inner`, for bodies of at most `max_body` bytes.
    pub fn new(
        inner: SocketAddr,
        loads: Arc<Loads>,
        hints: Option<Arc<Hints>>,
        max_body: usize,
    ) -> Edge {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let intake = Arc::new(Intake::new(max_body));
        Edge { inner, client, loads, hints, intake, models: Arc::default() }
    }

    /// Its routes.
    pub fn routes(self) -> Router {
        let read = READ.iter().fold(Router::new(), |router, path| router.route(path, get(pass)));
        read.route("/trail/loads", get(list))
            .route("/v1/completions", post(generate))
            .route("/v1/chat/completions", post(generate))
            .fallback(unknown)
            .with_state(self)
    }

    /// Passes a generation request on, and its answer back as it comes.
    async fn generate(&self, request: Request) -> Result<Response, Refusal> {
        let (mut parts, body) = request.into_parts();
        let (body, share) = self.intake.receive(body).await?;
        let (path, hints) = (parts.uri.path().to_owned(), self.hints.clone());
        let read = move || (rewrite(&path, &body, hints.as_deref()), body);
        let ((Rewritten { model, max_tokens, body: changed }, body), share) =
            self.intake.run(share, read).await?;
        let name = HeaderName::try_from(format!("{METADATA}{MAX_TOKENS_KEY}")).expect("is a name");
        parts.headers.remove(&name);
        if let Some(limit) = max_tokens {
            parts.headers.insert(name, limit.into());
        }
        // The client sets them for the body that it sends.
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(header::TRANSFER_ENCODING);
        let body = Body::from(changed.map_or(body, Bytes::from));
        let answer = share.during(self.send(Request::from_parts(parts, body))).await?;
        self.check(answer, model)
    }

    /// Sends a request to Dynamo's service.
    async fn send(&self, mut request: Request) -> Result<Response, Refusal> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("http://{}{path}", self.inner).parse::<Uri>();
        *request.uri_mut() =
            uri.map_err(|_| (StatusCode::BAD_REQUEST, "the path is not valid".into()))?;
        let mut answer = self.client.request(request).await.map_err(|error| {
            tracing::warn!("Dynamo's HTTP service did not answer: {error}");
            no_worker()
        })?;
        if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        Ok(answer.map(Body::new))
    }

    /// `answer`, unless it fails for want of a worker. A model that answered before has lost its
    /// last worker where Dynamo does not find it any more.
    fn check(&self, answer: Response, model: Option<String>) -> Result<Response, Refusal> {
        let status = answer.status();
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        match model {
            Some(model) if status.is_success() => {
                models.insert(model);
            }
            Some(model) if status == StatusCode::NOT_FOUND && models.contains(&model) => {
                return Err(no_worker());
            }
            _ => {}
        }
        let failed = status == StatusCode::NOT_FOUND || status.is_server_error();
        // Workers that do not report may live: their successes are not looked at.
        if failed && self.loads.alive(Instant::now()) == 0 {
            return Err(no_worker());
        }
        Ok(answer)
    }
}

/// The last report of every worker.
async fn list(State(edge): State<Edge>) -> Response {
    axum::Json(edge.loads.reports(Instant::now())).into_response()
}

async fn generate(State(edge): State<Edge>, request: Request) -> Response {
    edge.generate(request).await.unwrap_or_else(refuse)
}

async fn pass(State(edge): State<Edge>, request: Request) -> Response {
    edge.send(request).await.unwrap_or_else(refuse)
}

async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    refuse((
        StatusCode::NOT_FOUND,
        format!("{path} is not served: ask /v1/chat/completions or /v1/completions"),
    ))
}

/// The refusal while no worker lives.
fn no_worker() -> Refusal {
    (StatusCode::SERVICE_UNAVAILABLE, "no worker is alive: try again".into())
}

fn refuse((status, message): Refusal) -> Response {
    let kind = match status {
        StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
        _ if status.is_server_error() => "internal_error",
        _ => "invalid_request_error",
    };
    let body = serde_json::json!({"error": {
        "message": message,
        "type": kind,
        "code": status.as_u16(),
    }});
    let mut answer = (status, axum::Json(body)).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    answer
}
