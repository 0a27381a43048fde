//! Prefix cache and speculation over HTTP.

use crate::common::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
}

fn accepted(answer: &Value) -> u64 {
    let details = &answer["usage"]["completion_tokens_details"];
    details["accepted_prediction_tokens"].as_u64().expect("a count")
}

/// The value of one of vLLM's metrics.
fn vllm(server: &Server, name: &str) -> f64 {
    let series = format!("vllm:{name}{{engine=\"0\",model_name=\"demo\"}}");
    server.metric_of(&series).unwrap_or_else(|| panic!("no {series}"))
}

/// A prompt of 60 tokens with a period of 20, which a greedy answer tends to repeat.
fn repeating() -> Value {
    let prompt: Vec<u32> = (0..60).map(|at| 40 + at % 20).collect();
    json!({ "prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": true })
}

#[test]
fn the_same_prompt_is_found_and_counted_but_under_another_salt() {
    let server = Server::start(&["--speculate", "off"]);
    let [first, second] = [(); 2].map(|()| server.post(COMPLETIONS, &repeating()));
    assert_eq!(first["choices"], second["choices"]);
    // Not the block of the last token.
    assert_eq!((cached(&first), cached(&second)), (0, 48));
    let mut salted = repeating();
    salted["cache_salt"] = json!("another");
    assert_eq!(cached(&server.post(COMPLETIONS, &salted)), 0);
    assert_eq!(vllm(&server, "prefix_cache_queries_total"), 180.0);
    assert_eq!(vllm(&server, "prefix_cache_hits_total"), 48.0);
    for salt in [String::new(), "s".repeat(257)] {
        salted["cache_salt"] = json!(salt);
        let (status, error) = server.request("POST", COMPLETIONS, &salted.to_string());
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains("1 to 256 bytes"), "{status} {message}");
    }
    let server = Server::start(&["--no-prefix-cache"]);
    let [_, second] = [(); 2].map(|()| server.post(COMPLETIONS, &repeating()));
    assert_eq!(cached(&second), 0);
}

#[test]
fn accepted_tokens_change_no_answer_and_are_counted() {
    let [plain, with] = ["off", "ngram"].map(|mode| Server::start(&["--speculate", mode]));
    let [expected, answer] = [&plain, &with].map(|server| server.post(COMPLETIONS, &repeating()));
    assert_eq!(expected["choices"], answer["choices"]);
    assert_eq!(accepted(&expected), 0);
    let metric = vllm(&with, "spec_decode_num_accepted_tokens_total");
    assert_eq!(metric, accepted(&answer) as f64);
    assert!(vllm(&with, "spec_decode_num_draft_tokens_total") >= metric);
}

#[test]
fn a_predicted_output_is_proposed() {
    let server = Server::start(&["--speculate", "ngram"]);
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Tell me about the sea." }],
        "max_tokens": 40,
        "temperature": 0,
    });
    let first = server.post(CHAT, &body);
    body["prediction"] =
        json!({ "type": "content", "content": first["choices"][0]["message"]["content"] });
    let second = server.post(CHAT, &body);
    assert_eq!(first["choices"], second["choices"]);
    assert!(accepted(&second) > accepted(&first), "{second}");
    body["prediction"] = json!({ "type": "audio", "content": "" });
    let (status, error) = server.request("POST", CHAT, &body.to_string());
    assert_eq!((status, &error["error"]["param"]), (400, &json!("prediction.type")), "{error}");
}
