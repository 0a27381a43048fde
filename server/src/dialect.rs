//! Errors in the form of Anthropic's endpoints. All others have OpenAI's form.

use axum::Json;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;

/// Paths of Anthropic's endpoints begin with this.
const ANTHROPIC: &str = "/v1/messages";
/// Anthropic's header of the request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// True if `path` is below those of Anthropic's endpoints.
pub(crate) fn is_anthropic(path: &str) -> bool {
    path.strip_prefix(ANTHROPIC).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `response` to the request of `path` and `id`, with its error in the form of the path's dialect.
pub(crate) fn restated(path: &str, id: &str, mut response: Response) -> Response {
    if !is_anthropic(path) {
        return response;
    }
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let (mut head, _) = response.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(CONTENT_TYPE);
        let (new, body) = Json(anthropic_error(&error, id)).into_response().into_parts();
        head.headers.extend(new.headers);
        response = Response::from_parts(head, body);
    }
    // Another server's answer keeps the id that it has.
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().entry(REQUEST_ID).or_insert(id);
    }
    response
}

/// Anthropic's object of an error.
#[derive(Serialize, ToSchema)]
pub(crate) struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    error: AnthropicErrorFields<'a>,
    request_id: &'a str,
}

#[derive(Serialize, ToSchema)]
struct AnthropicErrorFields<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}

/// `error` as Anthropic's object.
pub(crate) fn anthropic_error(error: &ApiError, request_id: &str) -> Value {
    let kind = match error.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!(AnthropicError {
        kind: "error",
        error: AnthropicErrorFields { kind, message: error.message() },
        request_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_of_anthropics_paths_have_its_form_and_keep_their_headers() {
        let limited = || ApiError::too_many("later").into_response();
        for (path, is_theirs) in [
            ("/v1/messages", true),
            ("/v1/messages/count_tokens", true),
            ("/v1/messages_of_others", false),
            ("/v1/chat/completions", false),
        ] {
            let response = restated(path, "me", limited());
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()["retry-after"], "1");
            let id = response.headers().get("request-id").cloned();
            assert_eq!(id.is_some(), is_theirs, "{path}");
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(body["error"]["type"], "rate_limit_error");
            assert_eq!(body["error"]["message"], "later");
            assert_eq!(body["type"] == "error" && body["request_id"] == "me", is_theirs, "{path}");
        }
    }
}
