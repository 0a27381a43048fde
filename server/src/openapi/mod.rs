//! `GET /openapi.json`: the interface as an OpenAPI document, made from the routes and from the
//! types that serde reads and writes.

mod explicit;
mod schemas;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::dialect::{AnthropicError, is_anthropic};
use crate::error::ErrorObject;
use crate::routes::{self, Content, Guard, Route};
use crate::state::{Shared, version};
pub(crate) use explicit::JsonSchema;
pub(crate) use schemas::Schemas;

/// Statuses of refusals and failures, and when they are sent.
const STATUSES: [(u16, &str); 11] = [
    (400, "The request is invalid"),
    (401, "The request has no API key of this server"),
    (
        403,
        "The request comes from a host or a web page that may not use this server, or changes what it may not",
    ),
    (404, "There is no such model or response"),
    (408, "The body did not arrive in time"),
    (413, "The body is too large"),
    (415, "The body is not JSON, or encoded"),
    (417, "The header Expect asks for what this server does not do"),
    (429, "The server is full, or the API key has used its limit"),
    (500, "The engine stopped before the answer was complete"),
    (
        503,
        "The server is shutting down, out of memory for requests, or failed, or the model did not load",
    ),
];

/// The handler.
pub(crate) async fn show(State(state): Shared) -> Json<Value> {
    Json(document(&state.root_path))
}

/// The document of a server whose paths begin with `root`.
fn document(root: &str) -> Value {
    let mut schemas = Schemas::default();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes::all() {
        let item = paths.entry(documented(route.path)).or_insert_with(|| json!({}));
        item[route.method] = operation(&route, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "trail-rt",
            "description": "Fields that are not named are ignored, or refused if they would \
                            change the answer.",
            "license": { "name": "MIT OR Apache-2.0" },
            "version": version(),
        },
        "servers": [{ "url": if root.is_empty() { "/" } else { root } }],
        "paths": paths,
        "components": {
            "schemas": schemas.into_json(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

/// The router's `path` in OpenAPI's form: a rest of several segments is a parameter like others.
fn documented(path: &str) -> String {
    path.replace("{*", "{")
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let error = match is_anthropic(route.path) {
        true => schemas.of::<AnthropicError>(),
        false => schemas.of::<ErrorObject>(),
    };
    let mut responses = json!({ "200": success(route, schemas) });
    for (status, when) in STATUSES.iter().filter(|(status, _)| sends(route, *status)) {
        responses[status.to_string()] = json!({ "description": when, "content": json_of(&error) });
    }
    let mut operation = json!({ "summary": route.summary, "responses": responses });
    if let Some(request) = route.request {
        operation["requestBody"] =
            json!({ "required": true, "content": json_of(&request(schemas)) });
    }
    let in_path = documented(route.path).split_once('{').map(|(_, rest)| rest.to_owned());
    let in_path = in_path.map(|rest| (rest.trim_end_matches('}').to_owned(), "path"));
    let parameters = in_path.into_iter().chain(route.query.map(|name| (name.to_owned(), "query")));
    let parameters: Vec<Value> = parameters
        .map(|(name, place)| {
            let schema = json!({ "type": "string" });
            json!({ "name": name, "in": place, "required": place == "path", "schema": schema })
        })
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if route.guard == Guard::Key {
        // A server without keys needs none.
        operation["security"] = json!([{}, { "bearer": [] }, { "x-api-key": [] }]);
    }
    operation
}

fn json_of(schema: &Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

/// The response of status 200.
fn success(route: &Route, schemas: &mut Schemas) -> Value {
    let text = |kind: &str| json!({ kind: { "schema": { "type": "string" } } });
    let content = match route.content {
        Content::Text => text("text/plain"),
        Content::Events => text("text/event-stream"),
        Content::Document => json_of(&json!({ "type": "object" })),
        Content::Json(schema) => json_of(&schema(schemas)),
        Content::Answer(schema) => {
            let mut content = json_of(&schema(schemas));
            content["text/event-stream"] = text("text/event-stream")["text/event-stream"].clone();
            content
        }
    };
    json!({ "description": "Success", "content": content })
}

/// True if `route` can answer with `status`, of [`STATUSES`].
fn sends(route: &Route, status: u16) -> bool {
    let has_body = route.request.is_some();
    match status {
        401 => matches!(route.guard, Guard::Key | Guard::Metrics),
        404 => has_body || route.query.is_some() || route.path.contains('{'),
        408 | 413 | 415 | 417 | 429 => has_body,
        500 => has_body || route.guard == Guard::Metrics,
        // Also of a connection too many.
        _ => true,
    }
}
