//! OpenAI's Responses API.

use crate::common::{Response, Server, send_with};
use crate::messages::events;
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";

fn body(input: impl Into<Value>) -> Value {
    json!({ "model": "demo", "input": input.into(), "max_output_tokens": 20, "temperature": 0,
            "ignore_eos": true })
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

fn chat(server: &Server, messages: &Value) -> Value {
    let body =
        json!({ "messages": messages, "max_tokens": 20, "temperature": 0, "ignore_eos": true });
    server.post("/v1/chat/completions", &body)
}

#[test]
fn a_response_is_the_chats_answer() {
    let server = Server::start(&[]);
    let mut asked = body("Count to ten.");
    asked["instructions"] = "Be brief.".into();
    asked["metadata"] = json!({ "a": "b" });
    let response = server.post(RESPONSES, &asked);
    let answer = chat(
        &server,
        &json!([{ "role": "system", "content": "Be brief." },
                { "role": "user", "content": "Count to ten." }]),
    );
    assert_eq!(text(&response), answer["choices"][0]["message"]["content"]);
    assert_eq!(
        (&response["object"], &response["status"]),
        (&json!("response"), &json!("incomplete"))
    );
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["metadata"], json!({ "a": "b" }));
    assert_eq!(response["usage"]["output_tokens"], 20);
    assert_eq!(response["usage"]["input_tokens"], answer["usage"]["prompt_tokens"]);
    let items = json!([
        { "role": "developer", "content": "Be brief." },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Count to ten." }] },
    ]);
    assert_eq!(text(&server.post(RESPONSES, &body(items))), text(&response));
}

#[test]
fn a_response_goes_on_from_another_until_it_is_deleted() {
    let server = Server::start(&[]);
    let first = server.post(RESPONSES, &body("Count to ten."));
    let id = first["id"].as_str().expect("an id");
    let mut next = body("And back.");
    next["previous_response_id"] = id.into();
    let second = server.post(RESPONSES, &next);
    assert_eq!(second["previous_response_id"], id);
    let turns = json!([
        { "role": "user", "content": "Count to ten." },
        { "role": "assistant", "content": text(&first) },
        { "role": "user", "content": "And back." },
    ]);
    let answer = chat(&server, &turns);
    assert_eq!(text(&second), answer["choices"][0]["message"]["content"]);
    assert_eq!(second["usage"]["input_tokens"], answer["usage"]["prompt_tokens"]);
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(server.request("GET", &path, ""), (200, first.clone()));
    let (status, deleted) = server.request("DELETE", &path, "");
    assert_eq!((status, &deleted["deleted"]), (200, &json!(true)));
    assert_eq!(server.request("GET", &path, "").0, 404);
    let (status, error) = server.request("POST", RESPONSES, &next.to_string());
    assert_eq!((status, &error["error"]["code"]), (400, &json!("previous_response_not_found")));
    // The second one has the whole conversation.
    next["previous_response_id"] = second["id"].clone();
    server.post(RESPONSES, &next);
}

#[test]
fn responses_are_kept_for_their_key_and_unless_declined() {
    let path = std::env::temp_dir().join(format!("trail-owners-{}.toml", std::process::id()));
    let keys = "[[keys]]\nname = \"a\"\nkey = \"sk-a\"\n[[keys]]\nname = \"b\"\nkey = \"sk-b\"\n";
    std::fs::write(&path, keys).expect("written");
    let server = Server::start(&["--api-keys", path.to_str().expect("UTF-8")]);
    let exchange = |method: &str, path: &str, key: &str, body: &str| {
        let answer = server.exchange(method, path, &[("x-api-key", key)], body);
        (answer.status, answer.json())
    };
    let mut unkept = body("hi");
    unkept["store"] = false.into();
    let (_, response) = exchange("POST", RESPONSES, "sk-a", &unkept.to_string());
    let id = |response: &Value| response["id"].as_str().expect("an id").to_owned();
    assert_eq!(exchange("GET", &format!("{RESPONSES}/{}", id(&response)), "sk-a", "").0, 404);
    let (_, response) = exchange("POST", RESPONSES, "sk-a", &body("hi").to_string());
    let of_first = format!("{RESPONSES}/{}", id(&response));
    assert_eq!(exchange("GET", &of_first, "sk-b", "").0, 404);
    assert_eq!(exchange("DELETE", &of_first, "sk-b", "").0, 404);
    assert_eq!(exchange("GET", &of_first, "sk-a", "").0, 200);
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_response_streams_in_openais_events() {
    let server = Server::start(&[]);
    let whole = server.post(RESPONSES, &body("Count to ten."));
    let mut streamed = body("Count to ten.");
    streamed["stream"] = true.into();
    let sent = send_with(server.address, "POST", RESPONSES, &[], &streamed.to_string());
    let events = events(&Response::read(&mut { sent }).body);
    for (at, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(at)));
    }
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let opening = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ];
    let closing = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(names[..4], opening);
    assert_eq!(names[names.len() - 4..], closing);
    let deltas = &events[4..events.len() - 4];
    assert!(
        deltas.len() > 1 && deltas.iter().all(|(name, _)| name == "response.output_text.delta")
    );
    let joined: String = deltas.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    assert_eq!(joined, text(&whole));
    let last = &events[events.len() - 1].1["response"];
    assert_eq!(text(last), joined);
    assert_eq!(last["usage"]["output_tokens"], 20);
    // It is kept as a whole one is.
    let path = format!("{RESPONSES}/{}", last["id"].as_str().expect("an id"));
    assert_eq!(server.request("GET", &path, ""), (200, last.clone()));
}

#[test]
fn items_and_fields_that_are_not_supported_are_refused_by_name() {
    let server = Server::start(&[]);
    for (field, value, says) in [
        (
            "input",
            json!([{ "type": "function_call_output", "role": "user", "content": "a" }]),
            "'input[0]': missing field `call_id`",
        ),
        (
            "input",
            json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
            "a part of type `input_image` is not supported: the models read text alone",
        ),
        ("input", json!([]), "the input is empty"),
        ("input", json!(null), "input"),
        ("tools", json!([{ "type": "web_search" }]), "'tools[0]': a tool of type 'web_search'"),
        ("prompt_logprobs", json!(0), "'prompt_logprobs' is not supported"),
        ("background", json!(true), "'background' is not supported"),
        ("stop", json!(["a"]), "'stop' is not supported"),
        ("logprobs", json!(true), "'logprobs' is not supported"),
        ("echo", json!(true), "'echo' is not supported"),
        ("text", json!({ "format": { "type": "xml" } }), "'text.format.type'"),
        ("text", json!("plain"), "'text': expected an object with a format"),
        ("text", json!({ "format": 5 }), "'text.format': expected an object with a type"),
        ("text", json!({ "format": { "type": 5 } }), "'text.format.type': expected a string"),
        ("text", json!({ "verbosity": "low" }), "'text.verbosity': unknown value `low`"),
        ("metadata", json!([]), "'metadata': expected an object"),
        ("truncation", json!("auto"), "'truncation'"),
        ("include", json!(["message.output_text.logprobs"]), "logprobs"),
        ("max_output_tokens", json!(0), "'max_output_tokens' is 0"),
        ("max_output_tokens", json!(5000), "max_output_tokens"),
        ("model", json!("gpt-4"), "does not exist"),
    ] {
        let mut asked = body("hi");
        asked[field] = value;
        let (status, error) = server.request("POST", RESPONSES, &asked.to_string());
        let message = error["error"]["message"].to_string();
        assert!((400..=404).contains(&status) && message.contains(says), "{asked}: {message}");
    }
    let mut neutral = body("hi");
    neutral["text"] = json!({ "format": { "type": "text" } });
    neutral["truncation"] = "disabled".into();
    neutral["include"] = json!(["reasoning.encrypted_content"]);
    neutral["tools"] = json!([]);
    neutral["tool_choice"] = "auto".into();
    server.post(RESPONSES, &neutral);
}
