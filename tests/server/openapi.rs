//! The document of the interface, against what the server sends.

use crate::common::Server;
use serde_json::{Value, json};

fn document(server: &Server) -> Value {
    let (status, document) = server.request("GET", "/openapi.json", "");
    assert_eq!(status, 200);
    document
}

/// The schema that `at` is, or refers to.
fn resolved<'a>(document: &'a Value, at: &'a Value) -> &'a Value {
    match at["$ref"].as_str() {
        None => at,
        Some(name) => {
            let found = document.pointer(name.trim_start_matches('#'));
            found.unwrap_or_else(|| panic!("{name} is missing"))
        }
    }
}

/// The JSON schema of a request or response in `content`.
fn schema<'a>(document: &'a Value, content: &'a Value) -> &'a Value {
    resolved(document, &content["content"]["application/json"]["schema"])
}

/// The names of a schema's required fields, parts included.
fn required(document: &Value, schema: &Value) -> Vec<String> {
    let schema = resolved(document, schema);
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let names = schema["required"].as_array().into_iter().flatten();
    let names = names.filter_map(Value::as_str).map(str::to_owned);
    names.chain(parts.flat_map(|part| required(document, part))).collect()
}

fn each_reference(value: &Value, take: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(members) => {
            if members.contains_key("$ref") {
                take(value);
            }
            members.values().for_each(|value| each_reference(value, take));
        }
        Value::Array(items) => items.iter().for_each(|value| each_reference(value, take)),
        _ => {}
    }
}

#[test]
fn every_documented_operation_is_served() {
    let server = Server::start(&[]);
    let document = document(&server);
    each_reference(&document, &mut |reference| {
        resolved(&document, reference);
    });
    let mut count = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let target = path.replace("{id}", "demo");
        for (method, operation) in item.as_object().expect("methods") {
            // One without an end.
            if operation["responses"]["200"]["content"]["text/event-stream"].is_object()
                && operation["requestBody"].is_null()
            {
                continue;
            }
            // A body that is not read resets the connection.
            let body = if operation["requestBody"].is_object() { "{}" } else { "" };
            let (status, answer) = server.request(&method.to_uppercase(), &target, body);
            let responses = &operation["responses"];
            assert!(responses[status.to_string()].is_object(), "{method} {path}: {status}");
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(!message.contains("there is nothing at"), "{method} {path}");
            count += 1;
        }
    }
    assert!(count >= 19, "{count} operations");
}

#[test]
fn answers_and_errors_have_the_documented_fields() {
    let server = Server::start(&[]);
    let document = document(&server);
    let chat = json!([{ "role": "user", "content": "Count." }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": chat, "max_tokens": 2, "logprobs": true })),
        ("/v1/completions", json!({ "prompt": "a", "max_tokens": 2, "logprobs": 1 })),
        ("/v1/responses", json!({ "input": "a", "max_output_tokens": 2 })),
        ("/v1/messages", json!({ "model": "demo", "messages": chat, "max_tokens": 2 })),
        ("/v1/messages/count_tokens", json!({ "model": "demo", "messages": chat })),
        ("/tokenize", json!({ "prompt": "a" })),
        ("/detokenize", json!({ "tokens": [1] })),
    ] {
        let operation = &document["paths"][path]["post"];
        let fields = &schema(&document, &operation["requestBody"])["properties"];
        for name in body.as_object().expect("fields").keys() {
            assert!(fields[name].is_object(), "{path}: '{name}' is not documented");
        }
        for (status, body) in [(200, body.to_string()), (400, "[]".to_owned())] {
            let (found, answer) = server.request("POST", path, &body);
            assert_eq!(found, status, "{path}: {answer}");
            let schema = schema(&document, &operation["responses"][status.to_string()]);
            let names = required(&document, schema);
            assert!(!names.is_empty(), "{path}: {status}");
            for name in names {
                assert!(answer.get(&name).is_some(), "{path}: '{name}' is missing: {answer}");
            }
        }
    }
}

#[test]
fn a_root_path_is_in_the_document() {
    let server = Server::start(&["--root-path", "/llm"]);
    assert_eq!(document(&server)["servers"][0]["url"], "/llm");
}

#[test]
fn documented_bounds_are_those_of_the_server() {
    let server = Server::start(&[]);
    let document = document(&server);
    let request = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"];
    let mut count = 0;
    for (name, field) in schema(&document, request)["properties"].as_object().expect("fields") {
        // A time limit of the least length cannot be met.
        for (bound, beyond) in [("minimum", -1.0), ("maximum", 1.0)] {
            if name.ends_with("_ms") {
                continue;
            }
            let Some(bound) = field[bound].as_f64() else { continue };
            for (value, expected) in [(bound, 200), (bound + beyond, 400)] {
                let mut body = json!({ "messages": [{ "role": "user", "content": "Count." }],
                                       "max_tokens": 1 });
                body[name] = json!(value);
                let (status, answer) =
                    server.request("POST", "/v1/chat/completions", &body.to_string());
                assert_eq!(status, expected, "{name} {value}: {answer}");
                count += 1;
            }
        }
    }
    assert_eq!(count, 32, "bounds of eight fields");
}
