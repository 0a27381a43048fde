//! `GET /`: the page for browsers, and the list of endpoints for all others.

use std::collections::HashSet;
use std::sync::OnceLock;

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::routes;

/// The page's parts, in the order of their use.
const SCRIPTS: &[&str] = &[
    include_str!("../page/text.js"),
    include_str!("../page/dom.js"),
    include_str!("../page/api.js"),
    include_str!("../page/events.js"),
    include_str!("../page/theme.js"),
    include_str!("../page/key.js"),
    include_str!("../page/models.js"),
    include_str!("../page/stream.js"),
    include_str!("../page/link.js"),
    include_str!("../page/sections.js"),
    include_str!("../page/request.js"),
    include_str!("../page/fences.js"),
    include_str!("../page/completion.js"),
    include_str!("../page/sampling.js"),
    include_str!("../page/eta.js"),
    include_str!("../page/turn.js"),
    include_str!("../page/chat.js"),
    include_str!("../page/gauges.js"),
    include_str!("../page/queue_scale.js"),
    include_str!("../page/queue_patterns.js"),
    include_str!("../page/queue_painter.js"),
    include_str!("../page/queue.js"),
    include_str!("../page/queue_text.js"),
    include_str!("../page/past.js"),
    include_str!("../page/plots.js"),
    include_str!("../page/whatif.js"),
    include_str!("../page/policy.js"),
    include_str!("../page/main.js"),
];
const STYLE: &str = include_str!("../page/style.css");
const HTML: &str = include_str!("../page/index.html");

/// The page, and the policy by which a browser loads nothing else and runs no other script.
struct Page {
    html: String,
    policy: String,
}

impl Page {
    fn new() -> Page {
        let html = HTML.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", &SCRIPTS.join("\n"));
        let hash = |tag: &str| {
            let text = between(&html, &format!("<{tag}>"), &format!("</{tag}>"));
            STANDARD.encode(Sha256::digest(text))
        };
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; \
             connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'",
            hash("script"),
            hash("style")
        );
        Page { html, policy }
    }
}

/// The text between the first `begin` and the `end` after it.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).map_or("", |(_, rest)| rest);
    rest.split_once(end).map_or("", |(inner, _)| inner)
}

/// The handler. Load balancers and people with curl ask here too.
pub(crate) async fn show(headers: HeaderMap) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return list().into_response();
    }
    static PAGE: OnceLock<Page> = OnceLock::new();
    let page = PAGE.get_or_init(Page::new);
    let head = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, &page.policy),
        (CACHE_CONTROL, "no-cache"),
    ];
    (head, page.html.as_str()).into_response()
}

/// The endpoints.
fn list() -> String {
    let mut paths: Vec<&str> = routes::all().iter().map(|route| route.path).collect();
    paths.retain(|path| *path != "/" && !path.contains('{'));
    // A path has a route for each method.
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(*path));
    format!("trail-rt: a page for browsers, and {}\n", paths.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end tag within a part would end it, and give the policy another text to hash.
    #[test]
    fn the_page_is_one_script_and_one_style() {
        let Page { html, policy } = Page::new();
        for tag in ["<script>", "</script>", "<style>", "</style>"] {
            assert_eq!(html.matches(tag).count(), 1, "{tag}");
        }
        assert!(!html.contains("/*SCRIPT*/") && !html.contains("/*STYLE*/"));
        assert!(!html.contains(" style=\""));
        // The namespace of an image in it is no address.
        let addresses = html.matches("http://").count();
        assert_eq!(addresses, html.matches("http://www.w3.org/2000/svg").count());
        assert!(between(&html, "<script>", "</script>").len() > 10_000);
        assert_eq!(policy.matches("sha256-").count(), 2);
    }

    #[test]
    fn every_script_is_a_part() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let files = std::fs::read_dir(folder).expect("the folder").flatten();
        let scripts = files.filter(|file| file.path().extension().is_some_and(|of| of == "js"));
        assert_eq!(scripts.count(), SCRIPTS.len());
    }
}
