//! Answers of a given form.

use crate::common::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A request at temperature 1 with `fields`.
fn asked(fields: Value) -> Value {
    let mut body = json!({ "prompt": "Tell me a story.", "max_tokens": 300 });
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

/// The complete answers to `fields`, by ten seeds.
fn answers(server: &Server, fields: Value) -> Vec<String> {
    let mut body = asked(fields);
    body["n"] = 10.into();
    body["seed"] = 1.into();
    let answer = server.post(COMPLETIONS, &body);
    let choices = answer["choices"].as_array().expect("choices");
    let complete = choices.iter().filter(|choice| choice["finish_reason"] == "stop");
    let texts = complete.map(|choice| choice["text"].as_str().expect("text").to_owned());
    let texts: Vec<String> = texts.collect();
    assert!(texts.len() >= 3, "{answer}");
    texts
}

fn point() -> Value {
    let number = json!({ "type": "integer", "minimum": 0, "maximum": 9999 });
    json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 8 }, "x": number, "y": number },
        "required": ["name", "x", "y"],
        "additionalProperties": false,
    })
}

fn assert_point(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
    let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["name", "x", "y"], "{text}");
    assert!((0..=9999).contains(&value["x"].as_i64().expect("a number")), "{text}");
}

#[test]
fn answers_have_the_form_that_any_field_asks_for() {
    let server = Server::start(&[]);
    let named = json!({ "name": "point", "strict": true, "schema": point() });
    for fields in [
        json!({ "response_format": { "type": "json_schema", "json_schema": named } }),
        json!({ "structured_outputs": { "json": point(), "disable_any_whitespace": true } }),
        json!({ "guided_json": point().to_string() }),
        json!({ "json_schema": point() }),
        json!({ "guided_json": point(), "structured_outputs": { "json": point() } }),
    ] {
        answers(&server, fields).iter().for_each(|text| assert_point(text));
    }
    for field in ["guided_regex", "regex"] {
        for text in answers(&server, json!({ field: "[0-9]{3}-(ab|c)" })) {
            let (digits, rest) = text.split_once('-').expect("a hyphen");
            assert!(digits.len() == 3 && digits.parse::<u32>().is_ok(), "{text}");
            assert!(["ab", "c"].contains(&rest), "{text}");
        }
    }
    for text in answers(&server, json!({ "structured_outputs": { "choice": ["yes", "no"] } })) {
        assert!(["yes", "no"].contains(&&*text), "{text}");
    }
    for grammar in ["root ::= (\"ha\" | \"ho\"){2,5} \"!\"", "start: (\"ha\" | \"ho\"){2,5} \"!\""]
    {
        for text in answers(&server, json!({ "grammar": grammar })) {
            let rest = text.replace("ha", "").replace("ho", "");
            assert_eq!(rest, "!", "{text}");
        }
    }
}

#[test]
fn a_form_is_kept_by_chats_messages_and_responses_streamed_or_not() {
    let server = Server::start(&[]);
    let user = json!([{ "role": "user", "content": "Tell me a story." }]);
    let format = json!({ "type": "json_schema", "name": "point", "schema": point() });
    let body = json!({ "messages": user, "max_tokens": 400, "seed": 3, "response_format": {
        "type": "json_schema", "json_schema": { "name": "point", "schema": point() } } });
    let whole = server.post(CHAT, &body);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
    let text = whole["choices"][0]["message"]["content"].as_str().expect("text");
    assert_point(text);
    let pieces = server.stream(CHAT, &body);
    let content =
        |piece: &Value| piece["choices"][0]["delta"]["content"].as_str().map(String::from);
    assert_eq!(pieces.iter().filter_map(content).collect::<String>(), text);

    let message = json!({ "model": "demo", "messages": user, "max_tokens": 400, "seed": 3,
        "output_config": { "format": format } });
    let message = server.post("/v1/messages", &message);
    assert_point(message["content"][0]["text"].as_str().expect("text"));
    let response = json!({ "input": "Tell me a story.", "max_output_tokens": 400, "seed": 3,
        "text": { "format": format } });
    let response = server.post("/v1/responses", &response);
    assert_point(response["output"][0]["content"][0]["text"].as_str().expect("text"));
    assert_eq!(response["text"]["format"]["schema"], point());
}

#[test]
fn rules_on_single_tokens_are_kept() {
    let server = Server::start(&["--speculate", "off"]);
    let answer = |fields: Value| -> (Vec<u64>, String) {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Tell me a story." }],
            "max_tokens": 400, "seed": 5, "return_token_ids": true });
        for (name, value) in fields.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let answer = server.post(CHAT, &body);
        let choice = &answer["choices"][0];
        let ids = choice["token_ids"].as_array().expect("ids").iter();
        let text = choice["message"]["content"].as_str().expect("text");
        (ids.map(|id| id.as_u64().expect("an id")).collect(), text.to_owned())
    };
    let (plain, text) = answer(json!({}));
    assert!((5..300).contains(&plain.len()), "{plain:?}");
    let (longer, _) = answer(json!({ "min_tokens": plain.len() + 20 }));
    assert!(longer.len() >= plain.len() + 20 && longer.starts_with(&plain[..plain.len() - 1]));
    let banned = plain[3];
    let others: Vec<u64> = (0..1024).filter(|&id| id != banned).collect();
    for fields in [
        json!({ "logit_bias": { banned.to_string(): -100 } }),
        json!({ "allowed_token_ids": others }),
    ] {
        let (others, _) = answer(fields);
        assert!(!others.contains(&banned), "{others:?}");
        let same = plain.iter().position(|&id| id == banned).expect("it is there");
        assert_eq!(others[..same], plain[..same]);
    }
    let (favoured, _) = answer(json!({ "logit_bias": { "77": 100 }, "max_tokens": 9 }));
    assert_eq!(favoured, [77; 9]);
    let word = text.split_whitespace().nth(2).expect("three words");
    let (_, without) = answer(json!({ "bad_words": [word] }));
    assert!(!without.split_whitespace().any(|other| other == word), "{word}: {without}");
}

#[test]
fn forms_that_cannot_be_served_are_refused_by_name_and_place() {
    let server = Server::start(&[]);
    let not = json!({ "properties": { "a": { "not": { "type": "string" } } } });
    for (fields, param, says) in [
        (json!({ "guided_json": not }), "guided_json", "/properties/a/not"),
        (json!({ "guided_json": 7 }), "guided_json", "must be an object"),
        (json!({ "regex": "a(b" }), "regex", "the regular expression: unclosed group"),
        (json!({ "regex": "a{2,1}" }), "regex", "the regular expression: invalid repetition"),
        (json!({ "grammar": "root ::= x" }), "grammar", "no rule 'x'"),
        (json!({ "guided_choice": [] }), "guided_choice", "no choice"),
        (json!({ "guided_choice": ["a"], "regex": "b" }), "regex", "exclude each other"),
        (json!({ "structured_outputs": { "xml": 1 } }), "structured_outputs.xml", "unknown field"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type", "unknown value"),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias", "no token id"),
        (json!({ "logit_bias": { "5000": 1 } }), "logit_bias", "not in the vocabulary"),
        (json!({ "logit_bias": { "5": 101 } }), "logit_bias", "between -100 and 100"),
        (json!({ "allowed_token_ids": [] }), "allowed_token_ids", "is empty"),
        (json!({ "allowed_token_ids": [1024] }), "allowed_token_ids", "not in the vocabulary"),
        (json!({ "min_tokens": 301 }), "min_tokens", "at most max_tokens"),
    ] {
        let (status, error) =
            server.request("POST", COMPLETIONS, &asked(fields.clone()).to_string());
        let error = &error["error"];
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{fields}: {error}");
        assert!(error["message"].to_string().contains(says), "{fields}: {error}");
    }
    let (status, _) =
        server.request("POST", COMPLETIONS, &asked(json!({ "max_tokens": 3 })).to_string());
    assert_eq!(status, 200, "the server goes on");
}
