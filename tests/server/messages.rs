//! Anthropic's Messages API.

use crate::common::{Response, Server, send_with};
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";

fn body(content: &str) -> Value {
    json!({ "model": "demo", "max_tokens": 20, "temperature": 0, "ignore_eos": true,
            "messages": [{ "role": "user", "content": content }] })
}

/// The events of a stream: name and data.
pub(crate) fn events(text: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let (name, data) = block.split_once('\n')?;
        let data = serde_json::from_str(data.strip_prefix("data: ")?).ok()?;
        Some((name.strip_prefix("event: ")?.to_owned(), data))
    };
    text.split_terminator("\n\n")
        .map(|block| event(block).unwrap_or_else(|| panic!("{block}")))
        .collect()
}

fn stream(server: &Server, path: &str, body: &Value) -> Vec<(String, Value)> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let response =
        Response::read(&mut send_with(server.address, "POST", path, &[], &body.to_string()));
    assert_eq!(response.status, 200, "{}", response.body);
    events(&response.body)
}

#[test]
fn a_message_is_the_chats_answer() {
    let server = Server::start(&[]);
    let message = server.post(MESSAGES, &body("Count to ten."));
    let chat = server.post("/v1/chat/completions", &body("Count to ten."));
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
    let usage = &message["usage"];
    assert_eq!(usage["output_tokens"], 20);
    let prompt = usage["input_tokens"].as_u64().zip(usage["cache_read_input_tokens"].as_u64());
    assert_eq!(prompt.map(|(new, cached)| new + cached), chat["usage"]["prompt_tokens"].as_u64());
    let count = server.post("/v1/messages/count_tokens", &body("Count to ten."));
    assert_eq!(count["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn blocks_systems_and_prefills_are_turns() {
    let server = Server::start(&[]);
    let mut blocks = body("");
    blocks["system"] = json!([{ "type": "text", "text": "Be ", "cache_control": { "type": "ephemeral" } },
                              { "type": "text", "text": "brief." }]);
    blocks["messages"] = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Count." }] },
        { "role": "assistant", "content": "One two" },
    ]);
    let message = server.post(MESSAGES, &blocks);
    let chat = json!({
        "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Count." },
                     { "role": "assistant", "content": "One two" }],
        "continue_final_message": true, "max_tokens": 20, "temperature": 0, "ignore_eos": true,
    });
    let chat = server.post("/v1/chat/completions", &chat);
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
}

#[test]
fn a_message_streams_in_anthropics_events() {
    let server = Server::start(&[]);
    let whole = server.post(MESSAGES, &body("Count to ten."));
    let events = stream(&server, MESSAGES, &body("Count to ten."));
    assert!(events.iter().all(|(name, data)| data["type"] == *name));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let (first, rest) = names.split_at(2);
    assert_eq!(first, ["message_start", "content_block_start"]);
    let deltas = rest.iter().take_while(|name| **name == "content_block_delta").count();
    assert!(deltas > 1);
    assert_eq!(rest[deltas..], ["content_block_stop", "message_delta", "message_stop"]);
    let text: String =
        events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, whole["content"][0]["text"].as_str().expect("text"));
    let end = &events[events.len() - 2].1;
    assert_eq!(end["delta"]["stop_reason"], "max_tokens");
    assert_eq!(end["usage"]["output_tokens"], 20);
    let start = &events[0].1["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
}

#[test]
fn the_stop_sequence_is_named() {
    let server = Server::start(&[]);
    let whole = server.post(MESSAGES, &body("Count to ten."));
    let text = whole["content"][0]["text"].as_str().expect("text");
    let stop: String = text.chars().skip(5).take(3).collect();
    let mut stopped = body("Count to ten.");
    stopped["stop_sequences"] = json!(["never seen", stop]);
    let message = server.post(MESSAGES, &stopped);
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
    let events = stream(&server, MESSAGES, &stopped);
    assert_eq!(events[events.len() - 2].1["delta"]["stop_sequence"], stop);
}

/// `body("hi")` with another field.
fn with(field: &str, value: Value) -> Value {
    let mut body = body("hi");
    body[field] = value;
    body
}

fn post(server: &Server, path: &str, key: &str, body: &Value) -> Response {
    let headers = [("x-api-key", key), ("anthropic-version", "2023-06-01")];
    server.exchange("POST", path, &headers, &body.to_string())
}

/// Asserts that a response is an error in Anthropic's form.
fn assert_error(refused: &Response, status: u16, kind: &str, says: &str) {
    let error = refused.json();
    assert_eq!((refused.status, &error["type"]), (status, &json!("error")), "{error}");
    assert_eq!(error["error"]["type"], kind, "{error}");
    assert!(error["error"]["message"].to_string().contains(says), "{error}");
    assert_eq!(error["request_id"].as_str(), refused.header("request-id"), "{error}");
}

#[test]
fn errors_have_anthropics_form() {
    let server = Server::start(&["--api-key", "sk-a"]);
    let refused = post(&server, MESSAGES, "sk-b", &body("hi"));
    assert_error(&refused, 401, "authentication_error", "no such API key");
    let other = post(&server, MESSAGES, "sk-a", &with("model", json!("claude")));
    assert_error(&other, 404, "not_found_error", "does not exist");
    let nowhere = post(&server, "/v1/messages/batches", "sk-a", &body("hi"));
    assert_error(&nowhere, 404, "not_found_error", "/v1/messages/batches");
    let system = json!([{ "role": "system", "content": "a" }]);
    for (field, value, says) in [
        ("tools", json!([{ "name": "f", "input_schema": {} }]), "does not show tools"),
        ("max_tokens", json!(null), "max_tokens"),
        ("max_tokens", json!(0), "'max_tokens' is 0"),
        ("prompt_logprobs", json!(0), "'prompt_logprobs' is not supported"),
        ("stop", json!(["a"]), "'stop' is not supported"),
        ("thinking", json!({ "type": "enabled" }), "'thinking' is not supported"),
        ("messages", system, "'messages[0].role': unknown value `system`"),
        ("messages", json!([]), "no messages"),
        ("output_config", json!({ "effort": "low" }), "unknown field `effort`"),
    ] {
        let refused = post(&server, MESSAGES, "sk-a", &with(field, value));
        assert_error(&refused, 400, "invalid_request_error", says);
    }
    let neutral = with("thinking", json!({ "type": "disabled" }));
    assert_eq!(post(&server, MESSAGES, "sk-a", &neutral).status, 200);
    let counted = json!({ "model": "demo", "messages": [{ "role": "user", "content": "a" }] });
    let counted = post(&server, "/v1/messages/count_tokens", "sk-a", &counted);
    assert_eq!(counted.status, 200, "without max_tokens");
}
