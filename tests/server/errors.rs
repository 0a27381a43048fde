//! Requests that the server rejects, each with OpenAI's error object.

use std::time::{Duration, Instant};

use crate::common::Server;
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
    let tool_calls = json!([{ "role": "assistant", "content": "hi", "tool_calls": [{}] }]);
    let cases = [
        (COMPLETIONS, json!({}), "prompt"),
        (COMPLETIONS, json!({ "prompt": 5 }), "prompt"),
        (COMPLETIONS, json!({ "prompt": [] }), "prompt"),
        (COMPLETIONS, json!({ "prompt": [[]] }), "prompt"),
        (COMPLETIONS, json!({ "prompt": "a" , "max_tokens": 0 }), "max_tokens"),
        (CHAT, json!({ "messages": user, "max_completion_tokens": 0 }), "max_completion_tokens"),
        (COMPLETIONS, json!({ "prompt": "a", "max_tokens": -1 }), "max_tokens"),
        (COMPLETIONS, json!({ "prompt": "a", "max_tokens": 99999 }), "prompt"),
        (COMPLETIONS, json!({ "prompt": "a", "max_tokens": 1e30 }), "max_tokens"),
        (COMPLETIONS, json!({ "prompt": [1, 99999] }), "prompt"),
        (COMPLETIONS, json!({ "prompt": "a", "temperature": "hot" }), "temperature"),
        (COMPLETIONS, json!({ "prompt": "a", "temperature": -1 }), "temperature"),
        (COMPLETIONS, json!({ "prompt": "a", "top_p": 1.5 }), "top_p"),
        (COMPLETIONS, json!({ "prompt": "a", "repetition_penalty": 0 }), "repetition_penalty"),
        (COMPLETIONS, json!({ "prompt": "a", "logprobs": 21 }), "logprobs"),
        (CHAT, json!({ "messages": user, "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (COMPLETIONS, json!({ "prompt": "a", "seed": 1.5 }), "seed"),
        (COMPLETIONS, json!({ "prompt": "a", "n": 0 }), "n"),
        (COMPLETIONS, json!({ "prompt": "a", "n": 1000 }), "n"),
        (COMPLETIONS, json!({ "prompt": "a", "stop": [""] }), "stop"),
        (COMPLETIONS, json!({ "prompt": "a", "stop_token_ids": vec![1; 2000] }), "stop_token_ids"),
        (COMPLETIONS, json!({ "prompt": "a", "echo": 1 }), "echo"),
        (COMPLETIONS, json!({ "prompt": "a", "logit_bias": 1 }), "logit_bias"),
        (COMPLETIONS, json!({ "prompt": "a", "min_tokens": -1 }), "min_tokens"),
        (
            COMPLETIONS,
            json!({ "prompt": "a", "add_generation_prompt": true }),
            "add_generation_prompt",
        ),
        (CHAT, json!({ "messages": [] }), "messages"),
        (CHAT, json!({ "messages": [{ "content": "hi" }] }), "messages[0]"),
        (CHAT, json!({ "messages": tool_calls }), "messages[0].tool_calls[0]"),
        (CHAT, json!({ "messages": user, "top_logprobs": 2 }), "top_logprobs"),
        (CHAT, json!({ "messages": user, "tools": [{}] }), "tools[0]"),
        (CHAT, json!({ "messages": user, "tools": ["text"] }), "tools[0]"),
        (CHAT, json!({ "messages": user, "tool_choice": "required" }), "tool_choice"),
        (CHAT, json!({ "messages": user, "structural_tag": {} }), "structural_tag"),
        (CHAT, json!({ "messages": user, "echo": true }), "echo"),
        (CHAT, json!({ "messages": user, "skip_special_tokens": 1 }), "skip_special_tokens"),
        (
            CHAT,
            json!({ "messages": user, "continue_final_message": true,
                    "add_generation_prompt": true }),
            "continue_final_message",
        ),
    ];
    for (path, body, param) in cases {
        let (status, error) = refused(&server, "POST", path, &body.to_string());
        assert_eq!(
            (status, &error["type"]),
            (400, &json!("invalid_request_error")),
            "{body}: {error}"
        );
        assert_eq!(error["param"], param, "{body}: {error}");
    }
}

#[test]
fn errors_name_the_field_in_the_words_of_json() {
    let server = Server::start(&[]);
    let user = json!([{ "role": "user", "content": "hi" }]);
    let part = json!([{ "role": "user", "content": [5] }]);
    let cases = [
        (
            json!({ "messages": user, "logprobs": true, "top_logprobs": 300 }),
            "'top_logprobs': expected a whole number from 0 to 20, not number `300`",
        ),
        (json!({ "messages": user, "top_k": -5 }), "'top_k': expected a whole number"),
        (json!({ "messages": user, "n": 1.5 }), "'n': expected a whole number"),
        (json!({ "messages": user, "max_completion_tokens": 0 }), "'max_completion_tokens' is 0"),
        (json!({ "messages": 5 }), "'messages': expected an array, not number `5`"),
        (
            json!({ "messages": part }),
            "'messages[0].content[0]': expected an object with a type and a text, not number `5`",
        ),
        (json!({ "messages": user, "stream": 1 }), "'stream': expected a boolean, not number `1`"),
    ];
    for (body, says) in cases {
        let (status, error) = refused(&server, "POST", CHAT, &body.to_string());
        let message = error["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(says), "{body}: {message}");
    }
    let large = r#"{"messages": [{"role": "user", "content": "a", "x": 18446744073709551616}]}"#;
    let (_, error) = refused(&server, "POST", CHAT, large);
    assert!(error["message"].to_string().contains("more than 64 bits"), "{error}");
}

#[test]
fn whole_floats_are_whole_numbers() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": [5.0, 6.0], "n": 1.0, "max_tokens": 2e0, "ignore_eos": true });
    assert_eq!(server.post(COMPLETIONS, &body)["usage"]["completion_tokens"], 2);
}

#[test]
fn the_root_names_the_endpoints_and_other_methods_are_refused() {
    let server = Server::start(&[]);
    let (status, text) = server.get("/");
    assert!(status == 200 && text.contains("/v1/chat/completions"), "{text}");
    assert_eq!(server.request("HEAD", "/", "").0, 200);
    for path in ["/", "/health", "/live", "/metrics", "/v1/models"] {
        assert_eq!(refused(&server, "DELETE", path, "").0, 405, "{path}");
    }
}

/// Ids beyond the context are counted, not decoded for an echo.
#[test]
fn an_echo_beyond_the_context_is_refused() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": vec![5; 2000], "echo": true }).to_string();
    let (status, error) = refused(&server, "POST", COMPLETIONS, &body);
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")));
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
    assert_eq!(refused(&server, "GET", "/v1/models/%FF", "").0, 400);
    for (code, count) in [("400", 7.0), ("404", 2.0), ("405", 1.0)] {
        let name = format!("trail_http_responses_total{{code=\"{code}\"}}");
        assert_eq!(server.metric(&name), count, "{name}");
    }
}

/// A body of fields that are unknown costs its own size, not a multiple.
#[test]
#[cfg(target_os = "linux")]
fn unknown_fields_are_never_built() {
    let server = Server::start(&[]);
    server.post(COMPLETIONS, &json!({ "prompt": "x", "max_tokens": 1 }));
    let before = server.peak_memory();
    let junk = "{\"\":0},".repeat((3 << 20) / 7);
    let body = format!("{{\"prompt\":\"x\",\"max_tokens\":1,\"zz\":[{junk}0]}}");
    let (status, answer) = server.request("POST", COMPLETIONS, &body);
    assert_eq!(status, 200, "{answer}");
    let grown = server.peak_memory() - before;
    assert!(grown < 10 * body.len() as u64, "{grown} bytes for a body of {}", body.len());
}

#[test]
fn a_full_engine_says_try_again() {
    let server = Server::start(&["--max-running", "1", "--max-requests", "1"]);
    let long = json!({ "prompt": "a", "max_tokens": 900, "ignore_eos": true, "stream": true });
    let first = server.begin(COMPLETIONS, &long);
    server.wait_for("trail_requests_running", 1.0);
    let full = server.exchange("POST", COMPLETIONS, &[], &json!({ "prompt": "a" }).to_string());
    let code = &full.json()["error"]["code"];
    assert_eq!((full.status, code), (429, &json!("rate_limit_exceeded")));
    // The long answer takes a second or more.
    let seconds = full.header("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
    assert!(seconds.is_some_and(|seconds| (1..60).contains(&seconds)), "{seconds:?}");
    assert_eq!(server.metric("trail_http_responses_total{code=\"429\"}"), 1.0);
    // Of two answers the second finds no room: the request is refused, and none of it cancelled.
    drop(first);
    server.wait_for("trail_requests_total{finish_reason=\"cancelled\"}", 1.0);
    server.wait_for("trail_requests_running", 0.0);
    let two = json!({ "prompt": "a", "n": 2, "max_tokens": 900, "ignore_eos": true });
    let start = Instant::now();
    // The engine counts the cancelled request for a moment longer, and refuses both till then.
    while server.metric("trail_requests_total{finish_reason=\"rejected\"}") < 1.0 {
        assert_eq!(refused(&server, "POST", COMPLETIONS, &two.to_string()).0, 429);
        assert!(start.elapsed() < Duration::from_secs(30), "the first answer was never accepted");
    }
    assert_eq!(server.metric("trail_requests_total{finish_reason=\"cancelled\"}"), 1.0);
}
