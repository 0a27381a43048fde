//! The server's answers.

use crate::common::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(content: &str) -> Value {
    json!({ "model": "demo", "messages": [{ "role": "user", "content": content }], "seed": 7, "max_tokens": 40 })
}

fn completion(prompt: impl Into<Value>) -> Value {
    json!({ "model": "demo", "prompt": prompt.into(), "seed": 7, "max_tokens": 24, "ignore_eos": true })
}

/// Returns `body` with `fields` added.
fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("text")
}

#[test]
fn models_are_listed() {
    let server = Server::start(&[]);
    let (status, list) = server.request("GET", "/v1/models", "");
    assert_eq!((status, &list["data"][0]["id"]), (200, &json!("demo")));
    let (status, card) = server.request("GET", "/v1/models/demo", "");
    assert_eq!((status, &card), (200, &list["data"][0]));
    let (status, error) = server.request("GET", "/v1/models/some/other", "");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.get("/health"), (200, "ok\n".into()));
    assert_eq!(server.get("/live"), (200, "ok\n".into()));
}

#[test]
fn a_completion_streams_as_it_answers() {
    let server = Server::start(&["--speculate", "off"]);
    let body = completion("Count to ten.");
    let whole = server.post(COMPLETIONS, &body);
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    let prompt_tokens = usage["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(usage["total_tokens"], prompt_tokens + 24);

    let asked = with(body, json!({ "stream_options": { "include_usage": true } }));
    let pieces = server.stream(COMPLETIONS, &asked);
    let (last, pieces) = pieces.split_last().expect("pieces");
    assert_eq!((&last["usage"], &last["choices"]), (usage, &json!([])));
    assert_eq!(pieces.iter().map(text).collect::<String>(), text(&whole));
    let (last, others) = pieces.split_last().expect("pieces");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(others.iter().all(|piece| piece["choices"][0]["finish_reason"].is_null()));
    assert!(pieces.iter().all(|piece| piece["id"] == pieces[0]["id"]));
}

#[test]
fn a_chat_streams_as_it_answers() {
    let server = Server::start(&[]);
    let body = chat("Tell me a story.");
    let whole = server.post(CHAT, &body);
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["role"], "assistant");
    let pieces = server.stream(CHAT, &body);
    assert_eq!(pieces[0]["object"], "chat.completion.chunk");
    assert_eq!(pieces[0]["choices"][0]["delta"]["role"], "assistant");
    let content =
        |piece: &Value| piece["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    let streamed: String = pieces.iter().filter_map(content).collect();
    assert!(!streamed.is_empty());
    assert_eq!(whole["choices"][0]["message"]["content"], streamed);
    let parts =
        json!([{ "role": "user", "content": [{ "type": "text", "text": "Tell me a story." }] }]);
    let same = server.post(CHAT, &with(body, json!({ "messages": parts })));
    assert_eq!(same["choices"][0]["message"]["content"], streamed);
}

#[test]
fn several_prompts_and_answers_come_in_order() {
    let server = Server::start(&[]);
    let one = server.post(COMPLETIONS, &completion("Spell house."));
    let both = server.post(
        COMPLETIONS,
        &with(completion(json!(["Spell house.", "Add 2 and 3."])), json!({ "n": 2 })),
    );
    let choices = both["choices"].as_array().expect("choices");
    assert_eq!(
        choices.iter().map(|c| c["index"].as_u64()).collect::<Vec<_>>(),
        [0, 1, 2, 3].map(Some)
    );
    assert_eq!(choices[0]["text"], text(&one), "the first answer's seed is the one given");
    assert_ne!(choices[0]["text"], choices[1]["text"], "the second answer's seed is another");
    let ids = server.post(COMPLETIONS, &completion(json!([[0, 40, 41], [0, 40, 41]])));
    assert_eq!(ids["choices"][0]["text"], ids["choices"][1]["text"]);
    assert_eq!(ids["usage"]["prompt_tokens"], 6);
}

#[test]
fn stop_strings_cut_the_answer() {
    let server = Server::start(&[]);
    let body = completion("Count to ten.");
    let whole = server.post(COMPLETIONS, &body);
    let whole = text(&whole);
    let stop: String = whole.chars().skip(8).take(3).collect();
    let expected = whole.split(&stop).next().expect("text before the stop");
    let body = with(body, json!({ "stop": [stop, "never said"] }));
    let cut = server.post(COMPLETIONS, &body);
    assert_eq!((text(&cut), &cut["choices"][0]["finish_reason"]), (expected, &json!("stop")));
    let pieces = server.stream(COMPLETIONS, &body);
    assert_eq!(pieces.iter().map(text).collect::<String>(), expected);
    server.wait_for("trail_requests_running", 0.0);
}

#[test]
fn log_probabilities_come_in_both_spellings() {
    let server = Server::start(&[]);
    let body = with(completion("Count to ten."), json!({ "logprobs": 2, "temperature": 0 }));
    let logprobs = &server.post(COMPLETIONS, &body)["choices"][0]["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[name].as_array().map(Vec::len), Some(24), "{name}");
    }
    let body = with(
        chat("Count to ten."),
        json!({ "logprobs": true, "top_logprobs": 3, "temperature": 0 }),
    );
    let answer = server.post(CHAT, &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("logprobs");
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(3));
        assert_eq!(token["top_logprobs"][0]["token"], token["token"], "greedy takes the likeliest");
    }
    assert_eq!(answer["choices"][0]["message"]["content"], bytes_of(content).as_str());
}

/// The text of the bytes of all tokens.
fn bytes_of(content: &[Value]) -> String {
    let bytes = content.iter().flat_map(|token| token["bytes"].as_array().expect("bytes"));
    let bytes = bytes.map(|byte| byte.as_u64().expect("a byte") as u8).collect();
    String::from_utf8(bytes).expect("UTF-8")
}

/// Hot sampling of random tokens gives many that are parts of characters.
#[test]
fn log_probabilities_of_parts_of_characters_have_their_bytes() {
    let server = Server::start(&[]);
    let hot = json!({ "temperature": 20, "max_tokens": 60, "logprobs": 5 });
    let body = with(completion("é😀日本"), hot);
    let choice = &server.post(COMPLETIONS, &body)["choices"][0];
    let (text, logprobs) = (choice["text"].as_str().expect("text"), &choice["logprobs"]);
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert!(tokens.iter().any(|token| token.starts_with("bytes:\\x")), "{tokens:?}");
    let chars = text.chars().count() as u64;
    let offsets: Vec<u64> = logprobs["text_offset"]
        .as_array()
        .expect("offsets")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    assert!(offsets.is_sorted() && offsets.iter().all(|&offset| offset < chars), "{offsets:?}");
    // A token of whole characters is found at its offset.
    for (token, &offset) in tokens.iter().zip(&offsets).filter(|(t, _)| !t.starts_with("<|")) {
        let rest: String = text.chars().skip(offset as usize).collect();
        let partial = token.starts_with("bytes:");
        assert!(
            partial || rest.starts_with(token) || rest.starts_with('\u{FFFD}'),
            "{token:?} {rest:?}"
        );
    }
    for top in logprobs["top_logprobs"].as_array().expect("alternatives") {
        assert!(top.as_object().is_some_and(|top| top.len() >= 5), "{top}");
    }
    let hot = json!({ "temperature": 20, "max_tokens": 60, "logprobs": true, "top_logprobs": 0 });
    let answer = server.post(
        CHAT,
        &with(
            chat("é😀日本"),
            with(hot, json!({ "ignore_eos": true, "skip_special_tokens": false })),
        ),
    );
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().expect("logprobs");
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert!(
        content
            .iter()
            .any(|token| token["token"].as_str().is_some_and(|t| t.starts_with("bytes:")))
    );
    assert_eq!(choice["message"]["content"], String::from_utf8_lossy(&bytes).as_ref());
}

#[test]
fn tokens_beyond_a_stop_string_are_not_reported() {
    let server = Server::start(&[]);
    let body = with(completion("Count to ten."), json!({ "temperature": 0, "logprobs": 0 }));
    let whole = server.post(COMPLETIONS, &body);
    let stop: String = text(&whole).chars().skip(8).take(3).collect();
    let body = with(body, json!({ "stop": stop }));
    let cut = server.post(COMPLETIONS, &body);
    let chars = text(&cut).chars().count() as u64;
    let offsets = |answer: &Value| -> Vec<u64> {
        let offsets = answer["choices"][0]["logprobs"]["text_offset"].as_array();
        offsets.expect("offsets").iter().filter_map(Value::as_u64).collect()
    };
    assert!(offsets(&cut).iter().all(|&offset| offset < chars), "{cut}");
    let streamed: Vec<u64> = server.stream(COMPLETIONS, &body).iter().flat_map(offsets).collect();
    assert_eq!(streamed, offsets(&cut), "a stream reports the same");
}

#[test]
fn an_omitted_length_is_cut_to_the_context() {
    let server = Server::start(&["--max-model-len", "64"]);
    let (_, card) = server.request("GET", "/v1/models/demo", "");
    assert_eq!(card["max_model_len"], 64);
    for (body, path, tokens) in [
        (json!({ "prompt": vec![40; 60], "ignore_eos": true }), COMPLETIONS, 4),
        (json!({ "prompt": vec![40; 63], "ignore_eos": true }), COMPLETIONS, 1),
        (json!({ "prompt": vec![40; 4], "ignore_eos": true }), COMPLETIONS, 16),
    ] {
        assert_eq!(server.post(path, &body)["usage"]["completion_tokens"], tokens);
    }
    let usage = &server.post(
        CHAT,
        &json!({ "messages": [{ "role": "user", "content": "hi" }],
                                            "ignore_eos": true }),
    )["usage"];
    assert_eq!(usage["total_tokens"], 64);
    let (status, error) =
        server.request("POST", COMPLETIONS, &json!({ "prompt": vec![40; 64] }).to_string());
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(!message.contains("max_tokens"), "none was sent: {message}");
}

#[test]
fn seeds_are_signed_and_answers_have_their_own() {
    let server = Server::start(&[]);
    let texts = |seed: i64, n: u32| -> Vec<String> {
        let answer = server.post(
            COMPLETIONS,
            &with(completion("Tell me"), json!({ "seed": seed, "n": n, "max_tokens": 8 })),
        );
        let choices = answer["choices"].as_array().expect("choices").iter();
        choices.map(|choice| choice["text"].as_str().expect("text").to_owned()).collect()
    };
    let three = texts(3, 3);
    assert_eq!(three[0], texts(3, 1)[0], "the first answer has the seed itself");
    assert_ne!(three[2], texts(5, 1)[0], "the third is not that of another seed");
    assert_ne!(texts(-1, 1)[0], texts(1, 1)[0]);
    assert_eq!(texts(-1, 1), texts(-1, 1));
}

#[test]
fn every_metric_is_there() {
    let server = Server::start(&[]);
    server.post(CHAT, &with(chat("Count to ten."), json!({ "ignore_eos": true })));
    // The engine sends the last event before it decrements the gauge.
    server.wait_for("trail_requests_running", 0.0);
    server.wait_for("trail_kv_blocks_used", 0.0);
    let (_, text) = server.get("/metrics");
    for name in [
        "trail_requests_running 0",
        "trail_requests_waiting 0",
        "trail_kv_use_ratio 0",
        "trail_kv_blocks_used 0",
        "trail_time_to_first_token_seconds_count 1",
        "trail_request_latency_seconds_count 1",
        "trail_inter_token_seconds_count 39",
        "trail_generated_tokens_total 40",
        "trail_preemptions_total 0",
        "trail_evictions_total 0",
        "trail_recomputed_tokens_total 0",
        "trail_prediction_mae_tokens ",
        "trail_predictions_fresh_total ",
        "trail_predictions_late_total ",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in:\n{text}");
    }
}
