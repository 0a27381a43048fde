//! OpenAI's error objects.

use std::time::Duration;

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use trail_runtime::engine::{ConstraintFault, Fault, NonFiniteLogits, SubmitError};
use trail_scheduler::Refusal;
use trail_simulator::forecast::Interval;
use utoipa::ToSchema;

use crate::rate_limit::Exceeded;

/// Seconds after which a client may try again, if the server is full or closing.
pub(crate) const RETRY_SECONDS: u64 = 1;

/// Paths that clients ask for whose base URL lacks /v1.
const WITHOUT_V1: [&str; 6] =
    ["chat/completions", "completions", "embeddings", "messages", "models", "responses"];

/// A rejected or failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// Name of the field at fault.
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which the client may try again.
    retry_after: Option<u64>,
}

/// OpenAI's object of an error.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorObject<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize, ToSchema)]
struct ErrorFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    /// The field at fault.
    #[schema(required)]
    param: Option<&'a str>,
    #[schema(required)]
    code: Option<&'a str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let retries =
            matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry_after = retries.then_some(RETRY_SECONDS);
        ApiError { status, kind, message: message.into(), param: None, code: None, retry_after }
    }

    /// 400: the request is invalid.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the field `param` is invalid.
    pub(crate) fn invalid_field(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()), ..ApiError::invalid(message) }
    }

    /// 400: prompt and `max_tokens` together exceed the context length.
    pub(crate) fn too_long(param: &str, message: impl Into<String>) -> Self {
        ApiError {
            code: Some("context_length_exceeded"),
            ..ApiError::invalid_field(param, message)
        }
    }

    /// 401: the request has no key of this server.
    pub(crate) fn no_key() -> Self {
        let message = "there is no such API key: send one of this server as 'Authorization: \
                       Bearer KEY' or 'x-api-key: KEY'";
        let code = Some("invalid_api_key");
        ApiError { status: StatusCode::UNAUTHORIZED, code, ..ApiError::invalid(message) }
    }

    /// 429: the key has used its limit.
    pub(crate) fn over_limit(exceeded: &Exceeded) -> Self {
        let Exceeded { what, limit, wait } = exceeded;
        // A client that comes back too early is refused again.
        let seconds = wait.saturating_add(Duration::from_millis(999)).as_secs().max(1);
        let message = format!("this API key has {limit} {what} a minute: try again in {seconds} s");
        ApiError { retry_after: Some(seconds), ..ApiError::too_many(message) }
    }

    /// 403: the request comes from a place that may not use this server.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        ApiError { status: StatusCode::FORBIDDEN, ..ApiError::invalid(message) }
    }

    /// 415: the body has a form that is not read.
    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        ApiError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, ..ApiError::invalid(message) }
    }

    /// 417: the header Expect asks for what this server does not do.
    pub(crate) fn expectation_failed(expectation: &str) -> Self {
        let message =
            format!("the expectation '{expectation}' is unknown: leave the header Expect out");
        ApiError { status: StatusCode::EXPECTATION_FAILED, ..ApiError::invalid(message) }
    }

    /// 413: the body exceeds the size limit.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, ..ApiError::invalid(message) }
    }

    /// 408: the client did not send the body in time.
    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        ApiError { status: StatusCode::REQUEST_TIMEOUT, ..ApiError::invalid(message) }
    }

    /// 429: the server has too much to do.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        ApiError {
            code: Some("rate_limit_exceeded"),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// 503: there is no room for one more unfinished request.
    pub(crate) fn no_memory() -> Self {
        let message = "the server has too many unfinished requests: try again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// 503: there is no room for one more connection.
    pub(crate) fn no_connection() -> Self {
        let message = "the server has too many connections: try again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// 404: the model is not the one served.
    pub(crate) fn no_such_model(name: &str, served: &str) -> Self {
        let message = format!("the model '{name}' does not exist: this server has '{served}'");
        let status = StatusCode::NOT_FOUND;
        let error = ApiError::invalid_field("model", message);
        ApiError { status, code: Some("model_not_found"), ..error }
    }

    /// 503: the model could not be loaded.
    pub(crate) fn not_loaded(name: &str, why: &str) -> Self {
        let message = format!("the model '{name}' could not be loaded: {why}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// 409: the model is not loaded, and the call is no reason to load it.
    pub(crate) fn unloaded(name: &str) -> Self {
        let message =
            format!("the model '{name}' is not loaded: it has no policy until it is used");
        let error = ApiError::invalid(message);
        ApiError { status: StatusCode::CONFLICT, code: Some("model_not_loaded"), ..error }
    }

    /// 404: the server has no encoder.
    pub(crate) fn no_embedding_model() -> Self {
        let message = "this server has no embedding model: start it with --embedding-model PATH";
        let error = ApiError::invalid(message);
        ApiError { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..error }
    }

    /// 404: there is no response `id` of this key, or no more.
    pub(crate) fn no_such_response(id: &str) -> Self {
        let error = ApiError::invalid(format!("there is no response '{id}', or no longer"));
        ApiError { status: StatusCode::NOT_FOUND, ..error }
    }

    /// 400: the response to go on from is not there, or no more.
    pub(crate) fn no_previous_response(id: &str) -> Self {
        let message = format!(
            "there is no response '{id}', or no longer: send the conversation as 'input' instead"
        );
        let code = Some("previous_response_not_found");
        ApiError { code, ..ApiError::invalid_field("previous_response_id", message) }
    }

    /// 404: unknown path.
    pub(crate) fn no_such_path(path: &str) -> Self {
        let message = match path.strip_prefix('/').filter(|rest| WITHOUT_V1.contains(rest)) {
            Some(rest) => format!("there is nothing at {path}: did you mean /v1/{rest}?"),
            None => format!("there is nothing at {path}: GET / lists the endpoints"),
        };
        ApiError { status: StatusCode::NOT_FOUND, ..ApiError::invalid(message) }
    }

    /// 405: the path does not support `method`.
    pub(crate) fn method_not_allowed(method: &Method) -> Self {
        let message = format!("this path does not take {method} requests");
        ApiError { status: StatusCode::METHOD_NOT_ALLOWED, ..ApiError::invalid(message) }
    }

    /// 500: the engine stopped before the answer was complete.
    pub(crate) fn interrupted() -> Self {
        let message = "the engine stopped before the answer was complete";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 500: the model's logits were not finite.
    pub(crate) fn non_finite() -> Self {
        let message = NonFiniteLogits.to_string();
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The constraint on the answer had `fault` while it was generated: 400, or 500 for a defect.
    pub(crate) fn constraint(fault: Option<ConstraintFault>) -> Self {
        match fault {
            Some(ConstraintFault::Refused(why)) => ApiError::invalid(format!(
                "the answer could not go on: {why}; simplify its grammar, or relax the rules on its \
                 tokens"
            )),
            Some(fault) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                ApiError::new(status, "server_error", fault.to_string())
            }
            None => ApiError::interrupted(),
        }
    }

    /// 429: the request was given up, as the engine was full and all others ranked before it.
    pub(crate) fn overloaded() -> Self {
        let message = "the queue is full, and the other requests are expected to be shorter: try again \
                       later";
        ApiError::too_many(message)
    }

    /// 500: the engine failed with `fault`.
    pub(crate) fn broken(fault: &Fault) -> Self {
        let message = format!("the engine broke down: {fault}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// 503: the server is draining and accepts no new requests.
    pub(crate) fn draining() -> Self {
        let message = "the server is shutting down: try another one";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// 503: the drain's deadline came before the end of the answer.
    pub(crate) fn cut() -> Self {
        let message = "the server shut down before the answer was complete: try another one";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// 502: the server behind the proxy gave no answer.
    pub(crate) fn no_upstream(why: impl std::fmt::Display) -> Self {
        let error = ApiError::new(StatusCode::BAD_GATEWAY, "server_error", why.to_string());
        ApiError { code: Some("upstream_unavailable"), ..error }
    }

    /// 409: somebody cancelled the request by its id.
    pub(crate) fn cancelled() -> Self {
        let error = ApiError::invalid("the request was cancelled by DELETE /v1/requests");
        ApiError { status: StatusCode::CONFLICT, code: Some("request_cancelled"), ..error }
    }

    /// 404: no live request of the caller's has this id.
    pub(crate) fn no_such_request(id: &str) -> Self {
        let error = ApiError::invalid(format!("there is no live request '{id}' of yours"));
        ApiError { status: StatusCode::NOT_FOUND, code: Some("request_not_found"), ..error }
    }

    /// 429: the time limit in `field` of `what` would be missed. `retry_s`: the queue's estimate.
    pub(crate) fn not_in_time(
        (field, what): (&str, &str),
        limit: Duration,
        time: Interval,
        retry_s: f64,
    ) -> Self {
        let ms = |seconds: f64| (seconds * 1e3).ceil();
        let message = format!(
            "{what} is expected after {:.0} ms, with 90 % within {:.0} ms, and '{field}' is {}: \
             allow more time, or try again later",
            ms(time.median),
            ms(time.high),
            limit.as_millis()
        );
        let error = ApiError::too_many(message).after(retry_s);
        ApiError { code: Some("deadline_unreachable"), param: Some(field.to_owned()), ..error }
    }

    /// 504: the time limit in `field` of `what` is missed, or will be.
    pub(crate) fn given_up((field, what): (&str, &str)) -> Self {
        let message = format!("{what} will not be there within '{field}': the answer was given up");
        let error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message);
        ApiError { code: Some("deadline_exceeded"), param: Some(field.to_owned()), ..error }
    }

    /// The same, for a client that may try again after `retry_s` seconds: at least one.
    pub(crate) fn after(self, retry_s: f64) -> Self {
        ApiError { retry_after: Some((retry_s.ceil() as u64).max(RETRY_SECONDS)), ..self }
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The status code.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The error object.
    pub(crate) fn body(&self) -> Value {
        json!(ErrorObject {
            error: ErrorFields {
                message: &self.message,
                kind: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            }
        })
    }
}

impl ApiError {
    /// The engine's refusal of a request whose prompt is in the field `prompt` and whose length in
    /// `max_tokens`.
    pub(crate) fn of_submission(error: SubmitError, prompt: &str, max_tokens: &str) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Failed(fault) => ApiError::broken(&fault),
            SubmitError::Full { .. }
            | SubmitError::FullBytes { .. }
            | SubmitError::Refused(Refusal::Full { .. }) => ApiError::too_many(message),
            SubmitError::Refused(Refusal::ZeroMaxTokens) => {
                ApiError::invalid_field(max_tokens, message)
            }
            SubmitError::Refused(Refusal::NeverFits { .. } | Refusal::ContextTooLong { .. })
            | SubmitError::TooLarge { .. } => ApiError::too_long(prompt, message),
            SubmitError::Refused(Refusal::EmptyPrompt) | SubmitError::UnknownToken { .. } => {
                ApiError::invalid_field(prompt, message)
            }
            // The message begins with the parameter's name, which is the field's.
            SubmitError::Sampling(why) => {
                ApiError::invalid_field(why.split(' ').next().unwrap_or_default(), message)
            }
            _ => ApiError::invalid(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For the form of another dialect.
        response.extensions_mut().insert(self);
        response
    }
}
