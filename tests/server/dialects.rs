//! Tools and reasoning in Anthropic's Messages API and in OpenAI's Responses API.

use serde_json::{Value, json};

use crate::common::{Response, Server, send_with};
use crate::messages::events;
use crate::tools::server;

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn stream(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let mut sent = send_with(server.address, "POST", path, &[], &body.to_string());
    let response = Response::read(&mut sent);
    assert_eq!(response.status, 200, "{}", response.body);
    events(&response.body).into_iter().map(|(_, data)| data).collect()
}

fn message(model: &str, script: usize) -> Value {
    json!({ "model": model, "max_tokens": 50, "messages": [{ "role": "user", "content": "Hi." }],
            "tools": [{ "name": "get_weather", "description": "w",
                        "input_schema": { "type": "object", "properties": { "city": {} } } },
                      { "type": "custom", "name": "add", "input_schema": {} }],
            "chat_template_kwargs": { "script": script } })
}

/// Content blocks of a stream, put together as clients do, and the reason of its end.
fn blocks(events: &[Value]) -> (Vec<Value>, Value) {
    let (mut blocks, mut reason, mut input) = (Vec::<Value>::new(), Value::Null, String::new());
    for event in events {
        let index = event["index"].as_u64().map(|index| index as usize);
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!(index, Some(blocks.len()));
                blocks.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                assert_eq!(index, Some(blocks.len() - 1));
                let (block, delta) = (&mut blocks[index.expect("one")], &event["delta"]);
                for (kind, field) in [("text_delta", "text"), ("thinking_delta", "thinking")] {
                    if delta["type"] == kind {
                        let text = delta[field].as_str().expect("a text");
                        block[field] =
                            (block[field].as_str().expect("a text").to_owned() + text).into();
                    }
                }
                if delta["type"] == "input_json_delta" {
                    input.push_str(delta["partial_json"].as_str().expect("a text"));
                }
            }
            "content_block_stop" if !input.is_empty() => {
                let block = &mut blocks[index.expect("an index")];
                block["input"] = serde_json::from_str(&input).expect("JSON");
            }
            "message_delta" => reason = event["delta"]["stop_reason"].clone(),
            _ => {}
        }
    }
    (blocks, reason)
}

fn without_ids(items: &Value) -> Vec<Value> {
    let mut items = items.as_array().expect("a list").clone();
    for item in &mut items {
        item.as_object_mut().expect("an object").retain(|name, _| !name.ends_with("id"));
    }
    items
}

#[test]
fn messages_have_blocks_of_calls_and_reasoning() {
    let server = server("messages", &["--served-model-name", "m"]);
    let thinking = |text: &str| json!({ "type": "thinking", "thinking": text, "signature": "" });
    let call =
        |name: &str, input: Value| json!({ "type": "tool_use", "name": name, "input": input });
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (script, expected, reason) in [
        (
            0,
            vec![
                text("Let me look."),
                call("get_weather", json!({ "city": "Köln" })),
                call("add", json!({ "a": 1 })),
            ],
            "tool_use",
        ),
        (1, vec![thinking("Hm, well."), text("Hi there.")], "end_turn"),
        (2, vec![thinking("So."), call("add", json!({}))], "tool_use"),
        (3, vec![text("<tool_call>{\"name\": \"add\", arguments: {}}</tool_call>.")], "end_turn"),
    ] {
        let whole = server.post(MESSAGES, &message("m", script));
        assert_eq!(without_ids(&whole["content"]), expected);
        assert_eq!(whole["stop_reason"], reason);
        let (streamed, end) = blocks(&stream(&server, MESSAGES, &message("m", script)));
        assert_eq!((without_ids(&streamed.into()), end), (expected, json!(reason)));
    }
    let mut only_one = message("m", 0);
    only_one["tool_choice"] = json!({ "type": "auto", "disable_parallel_tool_use": true });
    let whole = server.post(MESSAGES, &only_one);
    assert_eq!(whole["content"].as_array().map(Vec::len), Some(2), "{whole}");
    let mut forced = message("m", 0);
    forced["tool_choice"] = json!({ "type": "tool", "name": "x" });
    let (status, error) = server.request("POST", MESSAGES, &forced.to_string());
    let message = error["error"]["message"].to_string();
    assert!(status == 400 && message.contains("names 'x'"), "{message}");
}

/// The same conversation gives the same number of tokens in each dialect.
#[test]
fn turns_with_calls_are_those_of_chats() {
    let server = server("turns", &["--served-model-name", "m"]);
    let mut chat = json!({ "tools": message("m", 0)["tools"], "max_tokens": 1, "messages": [
        { "role": "user", "content": "Hi." },
        { "role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [
            { "id": "c1", "type": "function", "function": { "name": "add", "arguments": "{\"b\":1,\"a\":2}" } },
            { "id": "c2", "type": "function", "function": { "name": "add", "arguments": "{}" } },
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "3" },
        { "role": "tool", "tool_call_id": "c2", "content": "0" },
        { "role": "user", "content": "And?" },
    ] });
    chat["tools"] = json!([]);
    let tokens = |usage: &Value| usage["prompt_tokens"].as_u64().expect("a number");
    let expected = tokens(&server.post("/v1/chat/completions", &chat)["usage"]);
    let message = json!({ "model": "m", "max_tokens": 1, "messages": [
        { "role": "user", "content": "Hi." },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "" },
            { "type": "text", "text": "So." },
            { "type": "tool_use", "id": "c1", "name": "add", "input": { "b": 1, "a": 2 } },
            { "type": "tool_use", "id": "c2", "name": "add", "input": {} },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "c1", "content": "3" },
            { "type": "tool_result", "tool_use_id": "c2", "content": [{ "type": "text", "text": "0" }] },
            { "type": "text", "text": "And?" },
        ] },
    ] });
    let count = server.post("/v1/messages/count_tokens", &message);
    assert_eq!(count["input_tokens"], expected);
    let items = json!({ "max_output_tokens": 1, "input": [
        { "role": "user", "content": "Hi." },
        { "type": "reasoning", "id": "r", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] },
        { "role": "assistant", "content": [{ "type": "output_text", "text": "So." }] },
        { "type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"b\":1,\"a\":2}" },
        { "type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "3" },
        { "type": "function_call_output", "call_id": "c2", "output": "0" },
        { "role": "user", "content": "And?" },
    ] });
    let response = server.post(RESPONSES, &items);
    assert_eq!(response["usage"]["input_tokens"], expected);
}

fn response(script: usize) -> Value {
    json!({ "input": "Hi.", "max_output_tokens": 50, "chat_template_kwargs": { "script": script },
            "tools": [{ "type": "function", "name": "get_weather", "strict": true,
                        "parameters": { "type": "object", "properties": { "city": {} } } },
                      { "type": "function", "name": "add" }] })
}

#[test]
fn responses_have_items_of_calls_and_reasoning() {
    let server = server("responses", &[]);
    let item = |kind: &str| json!({ "type": kind, "status": "completed" });
    let call = |name: &str, arguments: &str| {
        let mut call = item("function_call");
        (call["name"], call["arguments"]) = (name.into(), arguments.into());
        call
    };
    let message = |text: &str| {
        let mut message = item("message");
        message["role"] = "assistant".into();
        message["content"] =
            json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }]);
        message
    };
    let reasoning = |text: &str| {
        let mut reasoning = item("reasoning");
        reasoning["summary"] = json!([]);
        reasoning["content"] = json!([{ "type": "reasoning_text", "text": text }]);
        reasoning
    };
    for (script, expected, tokens) in [
        (
            0,
            vec![
                message("Let me look."),
                call("get_weather", "{\"city\": \"Köln\"}"),
                call("add", "{\"a\": 1}"),
            ],
            0,
        ),
        (1, vec![reasoning("Hm, well."), message("Hi there.")], 4),
        (2, vec![reasoning("So."), call("add", "{}")], 2),
    ] {
        let whole = server.post(RESPONSES, &response(script));
        assert_eq!(without_ids(&whole["output"]), expected);
        assert_eq!(whole["tools"][1], json!({ "type": "function", "name": "add" }));
        let details = &whole["usage"]["output_tokens_details"];
        assert_eq!(details["reasoning_tokens"], tokens);
        let events = stream(&server, RESPONSES, &response(script));
        let last = &events[events.len() - 1]["response"];
        assert_eq!(without_ids(&last["output"]), expected);
        let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
        let items: Vec<Value> =
            of("response.output_item.done").map(|event| event["item"].clone()).collect();
        assert_eq!(items, last["output"].as_array().expect("a list").clone());
        let deltas = of("response.function_call_arguments.delta");
        let arguments: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
        let of_items = expected.iter().filter_map(|item| item["arguments"].as_str());
        assert_eq!(arguments, of_items.collect::<String>());
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at);
        }
    }
    // The calls are part of the conversation that a later request goes on from.
    let first = server.post(RESPONSES, &response(2));
    let id = first["output"][1]["call_id"].as_str().expect("an id").to_owned();
    let mut next = response(1);
    next["previous_response_id"] = first["id"].clone();
    next["input"] = json!([{ "type": "function_call_output", "call_id": id, "output": "3" }]);
    let next = server.post(RESPONSES, &next);
    let mut explicit = response(1);
    explicit["input"] = json!([
        { "role": "user", "content": "Hi." },
        first["output"][0], first["output"][1],
        { "type": "function_call_output", "call_id": id, "output": "3" },
    ]);
    let explicit = server.post(RESPONSES, &explicit);
    assert_eq!(next["usage"]["input_tokens"], explicit["usage"]["input_tokens"]);
}
