//! Requests that the server rejects, each with OpenAI's error object.

mod common;

use common::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Sends a request that must be rejected; returns status and error.
fn refused(server: &Server, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, answer) = server.request(method, path, body);
    let error = answer["error"].clone();
    assert!(
        error["message"].as_str().is_some_and(|message| !message.contains('\n')),
        "{body}: {answer}"
    );
    assert!(error["type"].is_string(), "{answer}");
    (status, error)
}

#[test]
fn bad_fields_are_refused_by_name() {
    let server = Server::start(&[]);
    let user = json!([{ "role": "user", "content": "hi" }]);
    let cases = [
        (COMPLETIONS, json!({}), Value::Null),
        (COMPLETIONS, json!({ "prompt": 5 }), json!("prompt")),
        (COMPLETIONS, json!({ "prompt": [] }), Value::Null),
        (COMPLETIONS, json!({ "prompt": "" , "max_tokens": 0 }), Value::Null),
        (COMPLETIONS, json!({ "prompt": "a", "max_tokens": -1 }), json!("max_tokens")),
        (COMPLETIONS, json!({ "prompt": "a", "max_tokens": 99999 }), json!("prompt")),
        (COMPLETIONS, json!({ "prompt": "a", "max_tokens": 1e30 }), json!("max_tokens")),
        (COMPLETIONS, json!({ "prompt": [1, 99999] }), Value::Null),
        (COMPLETIONS, json!({ "prompt": "a", "temperature": "hot" }), json!("temperature")),
        (COMPLETIONS, json!({ "prompt": "a", "temperature": -1 }), Value::Null),
        (COMPLETIONS, json!({ "prompt": "a", "top_p": 0 }), Value::Null),
        (COMPLETIONS, json!({ "prompt": "a", "logprobs": 21 }), Value::Null),
        (COMPLETIONS, json!({ "prompt": "a", "n": 0 }), json!("n")),
        (COMPLETIONS, json!({ "prompt": "a", "n": 1000 }), json!("n")),
        (COMPLETIONS, json!({ "prompt": "a", "stop": [""] }), json!("stop")),
        (COMPLETIONS, json!({ "prompt": "a", "echo": true }), json!("echo")),
        (CHAT, json!({ "messages": [] }), json!("messages")),
        (CHAT, json!({ "messages": [{ "content": "hi" }] }), json!("messages[0]")),
        (CHAT, json!({ "messages": user, "top_logprobs": 2 }), json!("top_logprobs")),
        (CHAT, json!({ "messages": user, "tools": [{}] }), json!("tools")),
    ];
    for (path, body, param) in cases {
        let (status, error) = refused(&server, "POST", path, &body.to_string());
        assert_eq!(
            (status, &error["type"]),
            (400, &json!("invalid_request_error")),
            "{body}: {error}"
        );
        if !param.is_null() {
            assert_eq!(error["param"], param, "{body}: {error}");
        }
    }
}

#[test]
fn unknown_fields_are_let_through() {
    let server = Server::start(&[]);
    server.post(
        COMPLETIONS,
        &json!({ "prompt": "a", "user": "me", "nonsense": { "x": [1] }, "max_tokens": 1 }),
    );
}

#[test]
fn a_prompt_beyond_the_context_is_refused() {
    let server = Server::start(&[]);
    let long = "word ".repeat(3000);
    for (path, body) in [
        (COMPLETIONS, json!({ "prompt": long })),
        (CHAT, json!({ "messages": [{ "role": "user", "content": long }] })),
    ] {
        let (status, error) = refused(&server, "POST", path, &body.to_string());
        assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    }
}

#[test]
fn bad_requests_are_refused() {
    let server = Server::start(&[]);
    for body in ["", "{", "[]", "\u{1}", "{\"prompt\": \"\\ud800\"}"] {
        assert_eq!(refused(&server, "POST", COMPLETIONS, body).0, 400, "{body:?}");
    }
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(refused(&server, "POST", COMPLETIONS, &deep).0, 400);
    assert_eq!(refused(&server, "GET", CHAT, "").0, 405);
    assert_eq!(refused(&server, "GET", "/v2/models", "").0, 404);
    let other = json!({ "model": "gpt-4", "prompt": "a" }).to_string();
    let (status, error) = refused(&server, "POST", COMPLETIONS, &other);
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
}

#[test]
fn a_full_engine_says_try_again() {
    let server = Server::start(&["--max-running", "1", "--max-requests", "1"]);
    let long = json!({ "prompt": "a", "max_tokens": 900, "ignore_eos": true, "stream": true });
    let first = server.begin(COMPLETIONS, &long);
    server.wait_for("trail_requests_running", 1.0);
    let (status, error) =
        refused(&server, "POST", COMPLETIONS, &json!({ "prompt": "a" }).to_string());
    assert_eq!((status, &error["code"]), (429, &json!("rate_limit_exceeded")));
    drop(first);
}
