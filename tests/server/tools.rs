//! Tools and reasoning over HTTP, by a model whose answers are known.

use serde_json::{Value, json};

use crate::common::{Server, scripted};

/// Writes tools, turns with their calls and reasoning, and the token of the script that the
/// variable `script` names.
pub(crate) const TEMPLATE: &str = "\
{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}\
{% for document in documents or [] %}{{ document.text }}\n{% endfor %}\
{% for message in messages %}{{ message.role }}:{{ message.content or '' }}\
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}\
{{ call.function.arguments | tojson }}#{{ call.id }}{% endfor %}\
{% if message.tool_call_id %}#{{ message.tool_call_id }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<go{{ script or 0 }}>{% endif %}";

/// Two calls behind content; reasoning before content; reasoning before a call; a malformed call.
pub(crate) const SCRIPTS: [&[&str]; 4] = [
    &[
        "Let me",
        " look.\n",
        "<tool_call>",
        "\n{\"name\": \"get",
        "_weather\", \"argu",
        "ments\": {\"city\": \"K",
        "öln\"}}\n</tool",
        "_call>\n<tool_",
        "call>{\"name\": \"add\", \"arguments\": {\"a\": ",
        "1}}</tool_call>",
    ],
    &["<think>", "\nHm", ", well.\n", "</think>", "\n\nHi", " there."],
    &[
        "<think>So",
        ".</think>\n",
        "<tool_call>{\"name\": \"add\", \"argum",
        "ents\": {}}</tool_call> ",
    ],
    &["<tool_call>{\"name\": \"add\", ", "arguments: {}}</tool_call>."],
];

pub(crate) fn server(name: &str, options: &[&str]) -> Server {
    let special = ["<tool_call>", "<think>", "</think>"];
    let folder = scripted::model(name, TEMPLATE, &SCRIPTS, &special);
    let model = ["--model", folder.to_str().expect("UTF-8")];
    Server::start(&[&model, options].concat())
}

pub(crate) fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([
        { "type": "function",
          "function": { "name": "get_weather", "description": "w", "parameters": parameters } },
        { "type": "function", "function": { "name": "add" } },
    ])
}

/// A chat with tools, which the script answers.
fn body(script: usize) -> Value {
    json!({ "messages": [{ "role": "user", "content": "Hi." }], "tools": tools(),
            "chat_template_kwargs": { "script": script }, "max_tokens": 50 })
}

const CHATS: &str = "/v1/chat/completions";

/// The message of a stream, as clients put it together, its finish reason and its chunks.
fn streamed(server: &Server, body: &Value) -> (Value, Value, Vec<Value>) {
    let chunks = server.stream(CHATS, body);
    let (mut message, mut finish) = (json!({ "role": "assistant", "content": null }), Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    let append = |to: &mut Value, text: &Value| {
        if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
            *to = (to.as_str().unwrap_or_default().to_owned() + text).into();
        }
    };
    for chunk in &chunks {
        let choice = &chunk["choices"][0];
        assert!(finish.is_null(), "nothing comes behind the end");
        finish = choice["finish_reason"].clone();
        append(&mut message["content"], &choice["delta"]["content"]);
        append(&mut message["reasoning_content"], &choice["delta"]["reasoning_content"]);
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if index == calls.len() {
                assert_eq!(call["function"]["arguments"], "", "{chunk}");
                assert_eq!(choice["delta"]["tool_calls"].as_array().map(Vec::len), Some(1));
                let mut first = call.clone();
                first.as_object_mut().expect("an object").remove("index");
                calls.push(first);
            } else {
                assert_eq!((index, &call["id"]), (calls.len() - 1, &Value::Null), "{chunk}");
                append(&mut calls[index]["function"]["arguments"], &call["function"]["arguments"]);
            }
        }
    }
    if message["reasoning_content"].is_null() {
        message.as_object_mut().expect("an object").remove("reasoning_content");
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, finish, chunks)
}

/// `message` without the ids of its calls, which are random.
fn without_ids(message: &Value) -> Value {
    let mut message = message.clone();
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let id = call.as_object_mut().expect("a call").remove("id");
        let id = id.as_ref().and_then(Value::as_str).expect("an id").to_owned();
        assert!(id.starts_with("call_") && id.len() == 29, "{id}");
    }
    message
}

fn call(name: &str, arguments: &str) -> Value {
    json!({ "type": "function", "function": { "name": name, "arguments": arguments } })
}

#[test]
fn calls_are_streamed_as_they_are_in_a_whole_answer() {
    let server = server("calls", &[]);
    let whole = server.post(CHATS, &body(0));
    let choice = &whole["choices"][0];
    let weather = call("get_weather", "{\"city\": \"Köln\"}");
    let expected = json!({ "role": "assistant", "content": "Let me look.",
                           "tool_calls": [weather, call("add", "{\"a\": 1}")] });
    assert_eq!(without_ids(&choice["message"]), expected);
    assert_eq!(choice["finish_reason"], "tool_calls");
    let ids: Vec<&Value> = (0..2).map(|at| &choice["message"]["tool_calls"][at]["id"]).collect();
    assert_ne!(ids[0], ids[1]);
    let (message, finish, chunks) = streamed(&server, &body(0));
    assert_eq!((without_ids(&message), finish), (expected.clone(), json!("tool_calls")));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let mut first = body(0);
    first["parallel_tool_calls"] = false.into();
    for message in
        [server.post(CHATS, &first)["choices"][0]["message"].clone(), streamed(&server, &first).0]
    {
        assert_eq!(without_ids(&message)["tool_calls"], json!([expected["tool_calls"][0]]));
    }
    // Cut within a call, whose text it then is.
    let mut cut = body(0);
    cut["max_tokens"] = 5.into();
    let cut = &server.post(CHATS, &cut)["choices"][0];
    assert_eq!(cut["finish_reason"], "length");
    assert_eq!(
        cut["message"],
        json!({ "role": "assistant",
                "content": "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"argu" })
    );
    let mut scored = body(0);
    scored["logprobs"] = true.into();
    let scored = server.post(CHATS, &scored);
    assert_eq!(scored["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(10));
}

#[test]
fn malformed_calls_and_those_of_no_tool_are_content() {
    let server = server("malformed", &[]);
    let text = SCRIPTS[3].concat();
    let mut unheard = body(0);
    unheard["tools"] = json!([{ "type": "function", "function": { "name": "other" } }]);
    let mut none = body(0);
    none["tool_choice"] = "none".into();
    for (asked, content) in
        [(body(3), &text), (unheard, &SCRIPTS[0].concat()), (none, &SCRIPTS[0].concat())]
    {
        let choice = &server.post(CHATS, &asked)["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        // Without tools no special token is text.
        let content = match asked["tool_choice"].is_null() {
            true => content.clone(),
            false => content.replacen("<tool_call>", "", 1),
        };
        let expected = json!({ "role": "assistant", "content": content });
        assert_eq!(choice["message"], expected);
        assert_eq!(streamed(&server, &asked).0, expected);
    }
    let raw = self::server("raw", &["--tool-call-parser", "none", "--reasoning-parser", "none"]);
    let choice = &raw.post(CHATS, &body(3))["choices"][0];
    assert_eq!(choice["message"], json!({ "role": "assistant", "content": text }));
}

#[test]
fn reasoning_is_divided_from_content_and_counted() {
    let server = server("reasoning", &[]);
    for (script, expected, tokens) in [
        (1, json!({ "reasoning_content": "Hm, well.", "content": "Hi there." }), 4),
        (
            2,
            json!({ "reasoning_content": "So.", "content": null, "tool_calls": [call("add", "{}")] }),
            2,
        ),
    ] {
        let mut expected = expected;
        expected["role"] = "assistant".into();
        let whole = server.post(CHATS, &body(script));
        assert_eq!(without_ids(&whole["choices"][0]["message"]), expected);
        assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], tokens);
        assert_eq!(without_ids(&streamed(&server, &body(script)).0), expected);
    }
}

/// The text of the prompt of a chat.
fn prompt(server: &Server, chat: &Value) -> String {
    let tokens = server.post("/tokenize", chat)["tokens"].clone();
    let text = server.post("/detokenize", &json!({ "tokens": tokens }));
    text["prompt"].as_str().expect("a text").to_owned()
}

#[test]
fn templates_get_tools_documents_calls_results_and_reasoning() {
    let server = server("history", &[]);
    let mut chat = body(2);
    chat["documents"] = json!([{ "text": "Doc </s>" }]);
    chat["messages"] = json!([
        { "role": "user", "content": "Hi." },
        { "role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [
            { "id": "c1", "type": "function",
              "function": { "name": "add", "arguments": "{\"b\": 1, \"a\": [2.0, \"é\"]}" } },
            { "id": "c2", "type": "function", "function": { "name": "add", "arguments": "" } },
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "</s>" },
        { "role": "assistant", "content": "Ok.", "tool_calls": [] },
    ]);
    let shown = "{\"type\": \"function\", \"function\": {\"name\": \"add\"}}\n\
                 Doc </s>\nuser:Hi.\
                 assistant:<think>Hm.</think><tool_call>add{\"b\": 1, \"a\": [2.0, \"é\"]}#c1\
                 <tool_call>add{}#c2tool:</s>#c1assistant:Ok.<go2>";
    let text = prompt(&server, &chat);
    assert!(
        text.ends_with(shown)
            && text.starts_with("{\"type\": \"function\", \"function\": {\"name\""),
        "{text}"
    );
    let count = |chat: &Value| server.post("/tokenize", chat)["count"].clone();
    chat["max_tokens"] = 1.into();
    assert_eq!(server.post(CHATS, &chat)["usage"]["prompt_tokens"], count(&chat));
    // The end-of-sequence token of tools and documents is text.
    let tokens = server.post("/tokenize", &chat)["tokens"].clone();
    assert!(!tokens.as_array().expect("a list").contains(&json!(256)), "{tokens}");
    chat["tool_choice"] = "none".into();
    let mut without = chat.clone();
    without["tools"] = json!([]);
    let prompt_tokens = |chat: &Value| server.post(CHATS, chat)["usage"]["prompt_tokens"].clone();
    assert_eq!(prompt_tokens(&chat), prompt_tokens(&without));
}

/// `body(0)` with another field.
fn with(field: &str, value: Value) -> Value {
    let mut body = body(0);
    body[field] = value;
    body
}

/// Whatever the model would write: here, the end of its answer at once, or any byte.
#[test]
fn forced_calls_parse_in_every_format() {
    let whole = json!({ "type": "integer", "minimum": 0, "maximum": 99 });
    let point = json!({ "type": "object", "properties": { "x": whole, "name": { "enum": ["a", "b c"] } },
        "required": ["x", "name"], "additionalProperties": false });
    let tools = json!([
        { "type": "function", "function": { "name": "draw", "parameters": point } },
        { "type": "function", "function": { "name": "stop" } },
    ]);
    for parser in ["hermes", "llama3_json", "pythonic", "mistral"] {
        let server = server(&format!("forced-{parser}"), &["--tool-call-parser", parser]);
        for (choice, names) in [
            (json!("required"), &["draw", "stop"][..]),
            (json!({ "type": "function", "function": { "name": "draw" } }), &["draw"]),
        ] {
            for seed in 0..6 {
                let asked = json!({ "tools": tools, "tool_choice": choice, "seed": seed,
                    "parallel_tool_calls": seed % 2 == 0, "max_tokens": 2000,
                    "messages": [{ "role": "user", "content": "Hi." }] });
                let answer = server.post(CHATS, &asked);
                let (choice, id) = (&answer["choices"][0], &answer["id"]);
                assert_eq!(choice["finish_reason"], "tool_calls", "{parser}: {answer}");
                let calls = choice["message"]["tool_calls"].as_array().expect("calls");
                assert!(!calls.is_empty() && (seed % 2 == 0 || calls.len() == 1), "{id}");
                for call in calls {
                    let function = &call["function"];
                    let name = function["name"].as_str().expect("a name");
                    assert!(names.contains(&name), "{parser}: {name}");
                    let arguments = function["arguments"].as_str().expect("text");
                    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
                    assert!(name == "stop" || arguments["x"].is_u64(), "{parser}: {arguments}");
                }
            }
        }
    }
}

#[test]
fn faults_of_tools_are_named() {
    let server = server("faults", &[]);
    let tool = |function: Value| json!([{ "type": "function", "function": function }]);
    let history = |call: Value| json!([{ "role": "assistant", "tool_calls": [call] }]);
    let function =
        |arguments: Value| json!({ "function": { "name": "f", "arguments": arguments } });
    for (field, value, says) in [
        ("tools", json!([{ "type": "web_search" }]), "'tools[0]': a tool of type 'web_search'"),
        ("tools", json!([{ "type": "function" }]), "'tools[0]': missing field `function`"),
        ("tools", tool(json!({ "name": "a b" })), "'tools[0]': a tool's name has"),
        ("tools", tool(json!({ "name": "f", "parameters": [] })), "must be a JSON schema"),
        ("tools", json!([tools()[1], tools()[1]]), "'tools[1]': the name 'add' is there twice"),
        ("tools", json!("f"), "'tools'"),
        ("tool_choice", json!({ "type": "function", "function": { "name": "x" } }), "names 'x'"),
        ("tool_choice", json!("some"), "'tool_choice': unknown value `some`"),
        ("tool_choice", json!({ "type": "function" }), "'tool_choice': missing field `name`"),
        ("chat_template_kwargs", json!({ "messages": [] }), "'chat_template_kwargs.messages'"),
        ("chat_template_kwargs", json!({ "bos_token": "" }), "'chat_template_kwargs.bos_token'"),
        ("chat_template_kwargs", json!([]), "'chat_template_kwargs': expected an object"),
        ("documents", json!(["text"]), "'documents[0]': expected an object"),
        (
            "messages",
            history(function(json!("{"))),
            "'messages[0].tool_calls[0]': 'function.arguments'",
        ),
        ("messages", history(function(json!("[1]"))), "the text of a JSON object"),
        ("messages", history(function(json!("{\"a\": 18446744073709551616}"))), "64 bits"),
        ("messages", history(json!({ "name": "f" })), "missing field `function`"),
        ("functions", json!([{ "name": "f" }]), "'functions' is not supported"),
    ] {
        let (status, error) = server.request("POST", CHATS, &with(field, value).to_string());
        let message = error["error"]["message"].as_str().expect("a message").to_owned();
        assert!(status == 400 && message.contains(says), "{field}: {message}");
        assert_eq!(message.lines().count(), 1);
    }
    let mut completion = json!({ "prompt": "a", "tools": tools() });
    let (status, error) = server.request("POST", "/v1/completions", &completion.to_string());
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tools")));
    completion["tools"] = json!([]);
    server.post("/v1/completions", &completion);
}

#[test]
fn a_template_that_does_not_show_tools_refuses_them() {
    let server = Server::start(&[]);
    let mut asked = body(0);
    asked["max_tokens"] = 2.into();
    let (status, error) = server.request("POST", CHATS, &asked.to_string());
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(status == 400 && message.contains("does not show tools"), "{message}");
    asked["tool_choice"] = "none".into();
    server.post(CHATS, &asked);
    let template = "{{ tools }}{{ messages[-1].content }}<go0>";
    let folder = scripted::model("unknown", template, &SCRIPTS, &[]);
    let server = Server::start(&["--model", folder.to_str().expect("UTF-8")]);
    let (status, error) = server.request("POST", CHATS, &body(0).to_string());
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(status == 400 && message.contains("--tool-call-parser"), "{message}");
}

/// An answer that opens its reasoning itself has its form behind it, and so have forced calls.
#[test]
fn a_form_begins_behind_the_reasoning() {
    let server = server("thought_form", &[]);
    let mut asked = body(1);
    asked["regex"] = "\n\nHi there\\.|yes".into();
    let message = json!({ "role": "assistant", "content": "Hi there.",
                          "reasoning_content": "Hm, well." });
    assert_eq!(server.post(CHATS, &asked)["choices"][0]["message"], message);
    assert_eq!(streamed(&server, &asked).0, message);
    let mut forced = body(1);
    forced["max_tokens"] = 200.into();
    forced["tool_choice"] = json!({ "type": "function", "function": { "name": "add" } });
    let message = &server.post(CHATS, &forced)["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Hm, well.");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "add", "{message}");
}
