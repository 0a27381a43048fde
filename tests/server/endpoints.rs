//! Endpoints beside those that generate, and fields of vLLM's and llama.cpp's servers.

use crate::common::{Server, send_with};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().expect("tokens").iter().map(|id| id.as_u64().expect("an id")).collect()
}

fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": "Count to ten." }], "max_tokens": 12,
            "temperature": 0, "ignore_eos": true })
}

#[test]
fn texts_and_conversations_are_tokenized_and_tokens_are_text() {
    let server = Server::start(&[]);
    let text = server.post("/tokenize", &json!({ "model": "demo", "prompt": "Count to ten." }));
    let tokens = ids(&text["tokens"]);
    assert_eq!((&text["count"], &text["max_model_len"]), (&json!(tokens.len()), &json!(1024)));
    assert_eq!(text["token_strs"], Value::Null);
    let whole = server.post(COMPLETIONS, &json!({ "prompt": "Count to ten.", "max_tokens": 1 }));
    assert_eq!(whole["usage"]["prompt_tokens"], text["count"]);
    let back = server.post("/detokenize", &json!({ "tokens": tokens }));
    assert!(back["prompt"].as_str().is_some_and(|text| text.ends_with("Count to ten.")), "{back}");
    assert_eq!(back["content"], back["prompt"]);

    let messages = server.post("/tokenize", &json!({ "messages": chat()["messages"] }));
    let answer = server.post(CHAT, &chat());
    assert_eq!(messages["count"], answer["usage"]["prompt_tokens"]);
    let closed = json!({ "messages": chat()["messages"], "add_generation_prompt": false });
    let closed = server.post("/tokenize", &closed)["count"].as_u64().expect("a count");
    assert_eq!(messages["count"], closed + 1);

    // llama.cpp's form adds no special tokens unless asked, and can show pieces.
    let plain = server.post("/tokenize", &json!({ "content": "Count to ten." }));
    let special = json!({ "content": "Count to ten.", "add_special": true });
    assert_eq!(server.post("/tokenize", &special)["tokens"], text["tokens"]);
    let bare = json!({ "prompt": "Count to ten.", "add_special_tokens": false,
                       "return_token_strs": true });
    let bare = server.post("/tokenize", &bare);
    assert_eq!(
        (&bare["tokens"], ids(&plain["tokens"]).len()),
        (&plain["tokens"], bare["token_strs"].as_array().map_or(0, Vec::len))
    );
    let pieces = json!({ "content": "Count to ten.", "with_pieces": true });
    let pieces = server.post("/tokenize", &pieces);
    let joined = pieces["tokens"].as_array().expect("pieces").iter();
    let joined: String = joined.filter_map(|piece| piece["piece"].as_str()).collect();
    assert!(joined.ends_with("Count to ten."), "{joined}");
    let control = json!({ "content": "<|end|>" });
    assert_eq!(server.post("/tokenize", &control)["count"], 1);
    let as_text = json!({ "content": "<|end|>", "parse_special": false });
    assert!(server.post("/tokenize", &as_text)["count"].as_u64() > Some(1));
}

#[test]
fn malformed_texts_and_tokens_are_refused_by_name() {
    let server = Server::start(&[]);
    for (path, body, says) in [
        ("/tokenize", json!({}), "give one of 'prompt'"),
        ("/tokenize", json!({ "prompt": "a", "content": "a" }), "give one of 'prompt'"),
        ("/tokenize", json!({ "prompt": 5 }), "'prompt': expected a string, not number `5`"),
        ("/tokenize", json!({ "messages": [] }), "no messages"),
        ("/tokenize", json!({ "prompt": "a", "model": "other" }), "does not exist"),
        ("/tokenize", json!({ "prompt": "word ".repeat(9000) }), "room for 1024 tokens"),
        ("/detokenize", json!({ "tokens": [4_000_000] }), "there is no token 4000000"),
        ("/detokenize", json!({ "tokens": ["a"] }), "'tokens[0]': expected a whole number from 0"),
        ("/detokenize", json!({}), "missing field `tokens`"),
    ] {
        let (status, error) = server.request("POST", path, &body.to_string());
        let message = error["error"]["message"].as_str().expect("a message");
        assert!((400..=404).contains(&status) && message.contains(says), "{body}: {message}");
    }
}

#[test]
fn version_and_readiness_are_shown() {
    let server = Server::start(&[]);
    let (_, version) = server.request("GET", "/version", "");
    assert_eq!(version, json!({ "version": env!("CARGO_PKG_VERSION") }));
    assert_eq!(server.get("/ready"), (200, "ok\n".into()));
}

#[test]
fn a_model_can_have_several_names() {
    let server = Server::start(&["--served-model-name", "first,gpt-4o"]);
    let (_, list) = server.request("GET", "/v1/models", "");
    assert_eq!(
        (&list["data"][0]["id"], &list["data"][1]["id"]),
        (&json!("first"), &json!("gpt-4o"))
    );
    assert_eq!(list["data"][1]["root"], "first");
    for name in ["first", "gpt-4o"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).0, 200);
        let body = json!({ "model": name, "prompt": "a", "max_tokens": 1 });
        assert_eq!(server.post(COMPLETIONS, &body)["model"], "first");
    }
    let other = json!({ "model": "demo", "prompt": "a" }).to_string();
    let (status, error) = server.request("POST", COMPLETIONS, &other);
    assert!(status == 404 && error["error"]["message"].to_string().contains("'first', 'gpt-4o'"));
}

/// A client that takes the first chunk for the first token measures the time to it.
#[test]
fn the_role_comes_with_the_first_text() {
    let server = Server::start(&[]);
    let mut body = chat();
    body["n"] = 2.into();
    let pieces = server.stream(CHAT, &body);
    for index in 0..2 {
        let of_choice = |piece: &&Value| piece["choices"][0]["index"] == index;
        let mut deltas = pieces.iter().filter(of_choice).map(|piece| &piece["choices"][0]["delta"]);
        let first = deltas.next().expect("a chunk");
        assert_eq!(first["role"], "assistant");
        assert!(first["content"].as_str().is_some_and(|text| !text.is_empty()), "{first}");
        assert!(deltas.all(|delta| delta.get("role").is_none()));
    }
    let fingerprint = pieces[0]["system_fingerprint"].as_str().expect("a name");
    assert!(fingerprint.starts_with("fp_") && fingerprint.len() == 15, "{fingerprint}");
    assert_eq!(server.post(CHAT, &chat())["system_fingerprint"], fingerprint);
}

#[test]
fn every_chunk_can_have_the_counts_so_far() {
    let server = Server::start(&[]);
    let mut body = chat();
    body["stream_options"] = json!({ "include_usage": true, "continuous_usage_stats": true });
    let pieces = server.stream(CHAT, &body);
    let counts: Vec<u64> = pieces
        .iter()
        .map(|piece| piece["usage"]["completion_tokens"].as_u64().expect("a count"))
        .collect();
    assert!(counts.is_sorted() && counts[0] > 0 && counts.last() == Some(&12), "{counts:?}");
    let prompt = &pieces[0]["usage"]["prompt_tokens"];
    assert!(pieces.iter().all(|piece| piece["usage"]["prompt_tokens"] == *prompt));
    body["stream_options"] = json!({ "continuous_usage_stats": true });
    let pieces = server.stream(CHAT, &body);
    assert!(pieces.iter().all(|piece| piece.get("usage").is_none()));
}

#[test]
fn token_ids_are_returned_on_request() {
    let server = Server::start(&[]);
    let prompt: Vec<u64> = (40..50).collect();
    let body = json!({ "prompt": [prompt, [7]], "max_tokens": 12, "temperature": 0,
                       "ignore_eos": true, "return_token_ids": true });
    let whole = server.post(COMPLETIONS, &body);
    assert_eq!(ids(&whole["choices"][0]["prompt_token_ids"]), prompt);
    assert_eq!(ids(&whole["choices"][1]["prompt_token_ids"]), [7]);
    let streamed = server.stream(COMPLETIONS, &body);
    for index in 0..2 {
        let of_choice = |piece: &&Value| piece["choices"][0]["index"] == index;
        let choices: Vec<&Value> =
            streamed.iter().filter(of_choice).map(|piece| &piece["choices"][0]).collect();
        let tokens: Vec<u64> =
            choices.iter().flat_map(|choice| ids(&choice["token_ids"])).collect();
        assert_eq!(tokens.len(), 12);
        assert_eq!(tokens, ids(&whole["choices"][index]["token_ids"]));
        let with_prompt = choices.iter().filter(|choice| choice.get("prompt_token_ids").is_some());
        assert_eq!(with_prompt.count(), 1);
    }
    let mut body = chat();
    body["return_token_ids"] = true.into();
    let answer = server.post(CHAT, &body);
    let tokenized = server.post("/tokenize", &json!({ "messages": body["messages"] }));
    assert_eq!(answer["prompt_token_ids"], tokenized["tokens"]);
    assert_eq!(ids(&answer["choices"][0]["token_ids"]).len(), 12);
    let pieces = server.stream(CHAT, &body);
    assert_eq!(pieces[0]["prompt_token_ids"], tokenized["tokens"]);
    assert!(pieces[1..].iter().all(|piece| piece.get("prompt_token_ids").is_none()));
    assert!(server.post(CHAT, &chat()).get("prompt_token_ids").is_none());
}

#[test]
fn fields_that_would_change_the_answer_are_refused() {
    let server = Server::start(&[]);
    for field in ["lora", "adapter", "session_params", "custom_logit_processor"] {
        let body = json!({ "prompt": "a", "max_tokens": 1, field: 7 });
        let (status, error) = server.request("POST", COMPLETIONS, &body.to_string());
        assert_eq!((status, &error["error"]["param"]), (400, &json!(field)));
    }
    server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1, "n_probs": 0 }));
}

#[test]
fn a_malformed_field_is_named_by_its_path_in_the_words_of_json() {
    let server = Server::start(&[]);
    let user = json!({ "role": "user", "content": "hi" });
    for (body, param, says) in [
        (json!({ "messages": "hi" }), "messages", "expected an array"),
        (json!({ "messages": [user, 5] }), "messages[1]", "expected an object with a role"),
        (json!({ "messages": [user], "max_tokens": "5" }), "max_tokens", "a whole number from 0"),
        (json!({ "messages": [user], "n": -1 }), "n", "a whole number from 0"),
        (json!({ "messages": [user], "temperature": [] }), "temperature", "expected a number"),
        (json!({ "messages": [user], "stream": "yes" }), "stream", "expected a boolean"),
        (json!({ "messages": [user], "stop": 5 }), "stop", "expected a string or an array"),
        (json!({ "messages": [user], "stop_token_ids": [1, "a"] }), "stop_token_ids[1]", "number"),
        (
            json!({ "messages": [user], "stream_options": { "include_usage": 1 } }),
            "stream_options.include_usage",
            "expected a boolean, not number `1`",
        ),
        (json!({ "messages": [user], "stream_options": 1 }), "stream_options", "an object"),
        (json!({ "messages": [user], "seed": 1.5 }), "seed", "a whole number of at"),
    ] {
        let (status, error) = server.request("POST", CHAT, &body.to_string());
        let error = &error["error"];
        let message = error["message"].as_str().expect("a message");
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{body}: {message}");
        assert!(
            message.starts_with(&format!("'{param}': ")) && message.contains(says),
            "{message}"
        );
        for type_name in ["u32", "u64", "i64", "f32", "f64", "usize", "struct", "sequence", "map"] {
            assert!(!message.contains(type_name), "{message}");
        }
        assert!(!message.contains("line 1"), "{message}");
    }
}

#[test]
fn requests_have_ids() {
    let server = Server::start(&[]);
    let id = |given: &str| {
        let headers = [("X-Request-Id", given)];
        let answer = server.exchange("GET", "/v1/models", &headers, "");
        answer.header("x-request-id").expect("an id").to_owned()
    };
    assert_eq!(id("abc-1"), "abc-1");
    let own = id("with a space");
    assert!(own.len() == 32 && own != id("with a space"), "{own}");
    assert_eq!(id(&"x".repeat(129)).len(), 32);
    let error = send_with(server.address, "GET", "/nowhere", &[("x-request-id", "e")], "");
    let error = crate::common::Response::read(&mut { error });
    assert_eq!((error.status, error.header("x-request-id")), (404, Some("e")));
}
