//! The routes, each with what the document of the interface says about it.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use serde_json::Value;

use crate::embeddings::EmbeddingList;
use crate::live_requests::{Cancelled, LiveRequest, LiveRequestList};
use crate::messages::InputTokens;
use crate::models::{ModelCard, ModelList};
use crate::openapi::Schemas;
use crate::policy::ServedPolicy;
use crate::responses::Deleted;
use crate::state::{ServerState, Version};
use crate::tokenize::{DetokenizeResponse, TokenizeResponse};
use crate::{
    adapters, chat, completions, embeddings, live_requests, live_stream, messages, models, openapi,
    page, policy, response_object, responses, scrape, state, tokenize,
};

/// Checks before a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A key, where the server has some; refused while it drains.
    Key,
    /// Refused while the server drains.
    Open,
    /// A key, if the metrics are protected; served to the end.
    Metrics,
    /// Served to the end, for those who watch a drain.
    Always,
}

/// Makes a schema, or a reference to one.
type Schema = fn(&mut Schemas) -> Value;

/// The content of a success.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    /// A text.
    Text,
    /// Server-sent events without an end.
    Events,
    /// A JSON object of the schema.
    Json(Schema),
    /// The same, or a stream of server-sent events.
    Answer(Schema),
    /// Any JSON object.
    Document,
}

/// A route.
pub(crate) struct Route {
    /// Method in lower case.
    pub method: &'static str,
    /// Path in the router's form.
    pub path: &'static str,
    /// Checks before it.
    pub guard: Guard,
    /// Purpose.
    pub summary: &'static str,
    /// Name of its parameter in the query, a text that may be left out, if it has one.
    pub query: Option<&'static str>,
    /// Schema of the request's body, if it has one.
    pub request: Option<Schema>,
    /// Content of a success.
    pub content: Content,
    /// The handler.
    pub service: MethodRouter<Arc<ServerState>>,
}

/// A route of `method` behind a key.
fn route<H: Handler<T, Arc<ServerState>>, T: 'static>(
    (method, path): (&'static str, &'static str),
    summary: &'static str,
    content: Content,
    handler: H,
) -> Route {
    let service = match method {
        "post" => routing::post(handler),
        "delete" => routing::delete(handler),
        _ => routing::get(handler),
    };
    Route { method, path, guard: Guard::Key, summary, query: None, request: None, content, service }
}

impl Route {
    fn takes(self, request: Schema) -> Route {
        Route { request: Some(request), ..self }
    }

    fn asks(self, query: &'static str) -> Route {
        Route { query: Some(query), ..self }
    }

    fn behind(self, guard: Guard) -> Route {
        Route { guard, ..self }
    }
}

/// All routes: the router has these and no others, and the document describes them.
pub(crate) fn all() -> Vec<Route> {
    [generating(), reading(), changing(), others()].into_iter().flatten().collect()
}

/// Routes that compute with a model.
fn generating() -> Vec<Route> {
    use Content::{Answer, Json};
    let post = |path| ("post", path);
    let tokens = Json(Schemas::of::<InputTokens>);
    vec![
        route(post("/v1/chat/completions"), "Answer a chat", Answer(chat::response), chat::create)
            .takes(chat::request),
        route(
            post("/v1/completions"),
            "Continue texts",
            Answer(completions::response),
            completions::create,
        )
        .takes(completions::request),
        route(
            post("/v1/responses"),
            "Answer an input",
            Answer(response_object::schema),
            responses::create,
        )
        .takes(responses::request),
        route(
            post("/v1/messages"),
            "Answer messages, by Anthropic's API",
            Answer(messages::response),
            messages::create,
        )
        .takes(messages::request),
        route(
            post("/v1/messages/count_tokens"),
            "Count the tokens of messages",
            tokens,
            messages::count_tokens,
        )
        .takes(messages::count_request),
        route(
            post("/v1/embeddings"),
            "Embed texts",
            Json(Schemas::of::<EmbeddingList>),
            embeddings::create,
        )
        .takes(embeddings::request),
        route(
            post("/tokenize"),
            "List the tokens of a text or a chat",
            Json(Schemas::of::<TokenizeResponse>),
            tokenize::tokenize,
        )
        .takes(tokenize::request),
        route(
            post("/detokenize"),
            "Return the text of tokens",
            Json(Schemas::of::<DetokenizeResponse>),
            tokenize::detokenize,
        )
        .takes(tokenize::text_request),
    ]
}

/// Routes that return what the server keeps.
fn reading() -> Vec<Route> {
    use Content::Json;
    let (model, response) = ("/v1/models/{*id}", "/v1/responses/{id}");
    let (card, cards) = (Json(Schemas::of::<ModelCard>), Json(Schemas::of::<ModelList>));
    let kept = Json(response_object::schema);
    let deleted = Json(Schemas::of::<Deleted>);
    let request = "/v1/requests/{id}";
    let live = Json(Schemas::of::<LiveRequestList>);
    let one = Json(Schemas::of::<LiveRequest>);
    let policy = Json(Schemas::of::<ServedPolicy>);
    let cancelled = Json(Schemas::of::<Cancelled>);
    vec![
        route(("get", "/v1/models"), "List the models", cards, models::list),
        route(("get", model), "Return a model", card, models::retrieve),
        route(("get", response), "Return a kept response", kept, responses::retrieve),
        route(("delete", response), "Drop a kept response", deleted, responses::delete),
        route(("get", "/v1/requests"), "List the live requests", live, live_requests::list),
        route(("get", request), "Return a live request", one, live_requests::retrieve),
        route(("delete", request), "Cancel a live request", cancelled, live_requests::cancel),
        route(
            ("get", "/v1/trail/live"),
            "Stream the live requests of a model",
            Content::Events,
            live_stream::stream,
        )
        .asks("model"),
        route(("get", "/v1/trail/policy"), "Return the scheduling policy", policy, policy::show)
            .asks("model"),
    ]
}

/// Routes that change what the server has.
fn changing() -> Vec<Route> {
    let post = |path| ("post", path);
    vec![
        route(post("/v1/load_model"), "Load a model", Content::Text, models::load)
            .takes(models::change_request),
        route(post("/v1/unload_model"), "Unload a model", Content::Text, models::unload)
            .takes(models::change_request),
        route(
            post("/v1/trail/policy"),
            "Change the scheduling policy",
            Content::Json(Schemas::of::<ServedPolicy>),
            policy::change,
        )
        .takes(policy::change_request),
        route(
            ("delete", "/v1/trail/policy"),
            "Put the scheduling policy of the start back",
            Content::Json(Schemas::of::<ServedPolicy>),
            policy::reset,
        )
        .asks("model"),
        route(post("/v1/load_lora_adapter"), "Load an adapter", Content::Text, adapters::load)
            .takes(adapters::load_request),
        route(
            post("/v1/unload_lora_adapter"),
            "Unload an adapter",
            Content::Text,
            adapters::unload,
        )
        .takes(adapters::unload_request),
    ]
}

/// Routes about the server.
fn others() -> Vec<Route> {
    use Content::{Document, Json, Text};
    let get = |path| ("get", path);
    let version = Json(Schemas::of::<Version>);
    let always = [
        route(get("/health"), "Tell if requests are accepted", Text, state::health),
        route(get("/ready"), "Tell if requests are accepted", Text, state::health),
        route(get("/live"), "Tell if the process answers", Text, state::live),
        route(get("/version"), "Return the program's version", version, state::show_version),
        route(get("/openapi.json"), "Return this document", Document, openapi::show),
    ];
    let always = always.into_iter().map(|route| route.behind(Guard::Always));
    let index = route(get("/"), "Show the page, or list the endpoints", Text, page::show)
        .behind(Guard::Open);
    let metrics = route(get("/metrics"), "Return Prometheus's metrics", Text, scrape::scrape);
    always.chain([index, metrics.behind(Guard::Metrics)]).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// So that no route is missing in the document.
    #[test]
    fn the_router_has_routes_of_the_list_alone() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut calls = 0;
        for file in fs::read_dir(sources).expect("sources").flatten() {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            calls += [".route(", ".nest(", ".route_service("]
                .map(|call| code.matches(call).count())
                .iter()
                .sum::<usize>();
        }
        assert_eq!(calls, 1, "routes belong into routes.rs");
    }
}
