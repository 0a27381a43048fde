//! Log-probabilities of a prompt's tokens: `echo` with `logprobs`, `prompt_logprobs`, and answers
//! of no tokens.

use crate::common::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const TEXT: &str = "Größe 😀: count to ten. One two three four";

fn choice(answer: &Value, index: usize) -> &Value {
    &answer["choices"][index]
}

fn column<'a>(choice: &'a Value, name: &str) -> &'a Vec<Value> {
    choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("{name} of {choice}"))
}

/// The token ids of a completion's prompt, and those of its answer.
fn ids(choice: &Value) -> (Vec<u32>, Vec<u32>) {
    let ids = |name: &str| serde_json::from_value(choice[name].clone()).expect("ids");
    (ids("prompt_token_ids"), ids("token_ids"))
}

/// Checks the columns of an echo of `text` for a prompt of `prompt` and an answer of `answer`
/// tokens.
fn check_columns(choice: &Value, (prompt, answer): (usize, usize)) {
    let text: Vec<char> = choice["text"].as_str().expect("text").chars().collect();
    let [tokens, logprobs, top, offsets] =
        ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
            .map(|name| column(choice, name));
    for column in [tokens, logprobs, top, offsets] {
        assert_eq!(column.len(), prompt + answer, "{choice}");
    }
    assert_eq!((&logprobs[0], &top[0]), (&Value::Null, &Value::Null));
    for at in 1..tokens.len() {
        let logprob = logprobs[at].as_f64().expect("a number");
        let top = top[at].as_object().expect("an object");
        assert!(top.values().any(|other| other.as_f64() == Some(logprob)), "{at}: {top:?}");
        assert!(logprob <= 0.0);
    }
    for (token, offset) in tokens.iter().zip(offsets) {
        let (token, offset) = (token.as_str().expect("text"), offset.as_u64().expect("a number"));
        let is_text = !token.starts_with("bytes:") && !token.starts_with("<|");
        let there: String = text[offset as usize..].iter().collect();
        assert!(!is_text || there.starts_with(token), "{token:?} is not at {offset} of {choice}");
    }
}

/// A greedy answer as part of a prompt has the log-probabilities that it had as an answer, bit for
/// bit, as text, as ids, in batches, and where the prefix cache has the tokens.
#[test]
fn an_echo_has_the_log_probabilities_that_an_answer_had() {
    let server = Server::start(&["--speculate", "off"]);
    let ask = |fields: Value| {
        let mut body = json!({ "temperature": 0, "max_tokens": 20, "ignore_eos": true,
                               "logprobs": 3, "return_token_ids": true });
        body.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        server.post(COMPLETIONS, &body)
    };
    let plain = ask(json!({ "prompt": TEXT }));
    let (prompt, answer) = ids(choice(&plain, 0));
    let echoed = ask(json!({ "prompt": TEXT, "echo": true }));
    let whole = choice(&echoed, 0);
    let text = format!("{TEXT}{}", choice(&plain, 0)["text"].as_str().expect("text"));
    assert_eq!((whole["text"].as_str(), &echoed["usage"]), (Some(&*text), &plain["usage"]));
    check_columns(whole, (prompt.len(), 20));
    for name in ["tokens", "token_logprobs", "top_logprobs"] {
        assert_eq!(column(whole, name)[prompt.len()..], column(choice(&plain, 0), name)[..]);
    }
    let all = [prompt.clone(), answer].concat();
    let batch = ask(json!({ "prompt": [all, prompt], "echo": true, "max_tokens": 1, "n": 2 }));
    assert_eq!(batch["choices"].as_array().expect("choices").len(), 4);
    for at in 0..4 {
        let (choice, len) = (choice(&batch, at), [all.len(), prompt.len()][at / 2]);
        check_columns(choice, (len, 1));
        for name in ["tokens", "token_logprobs", "top_logprobs"] {
            assert_eq!(column(choice, name)[..len], column(whole, name)[..len], "{name} of {at}");
        }
    }
}

#[test]
fn a_streamed_echo_has_the_same_columns() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": TEXT, "temperature": 0, "max_tokens": 12, "ignore_eos": true,
                       "logprobs": 1, "echo": true });
    let whole = server.post(COMPLETIONS, &body);
    let pieces = server.stream(COMPLETIONS, &body);
    let first = choice(&pieces[0], 0);
    assert!(first["text"].as_str().is_some_and(|text| text.starts_with(TEXT)), "{first}");
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let joined: Vec<&Value> =
            pieces.iter().flat_map(|piece| column(choice(piece, 0), name)).collect();
        assert_eq!(joined, column(choice(&whole, 0), name).iter().collect::<Vec<_>>(), "{name}");
    }
}

/// Harnesses cut the one token off that they ask for, whatever it is.
#[test]
fn the_token_that_ends_an_answer_is_among_the_columns_of_an_echo() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": "One two", "temperature": 0, "max_tokens": 1, "logprobs": 0,
                       "return_token_ids": true, "ignore_eos": true });
    let (prompt, answer) = ids(choice(&server.post(COMPLETIONS, &body), 0));
    let mut stopped = body;
    stopped["stop_token_ids"] = json!(answer);
    let plain = server.post(COMPLETIONS, &stopped);
    assert_eq!(choice(&plain, 0)["finish_reason"], "stop");
    assert!(column(choice(&plain, 0), "tokens").is_empty());
    stopped["echo"] = json!(true);
    let echoed = server.post(COMPLETIONS, &stopped);
    assert_eq!(choice(&echoed, 0)["text"], "One two");
    assert_eq!(column(choice(&echoed, 0), "tokens").len(), prompt.len() + 1);
}

#[test]
fn an_answer_may_have_no_tokens_where_its_prompt_is_reported() {
    let server = Server::start(&[]);
    let ask = |fields: Value| {
        let mut body = json!({ "prompt": TEXT, "max_tokens": 0, "return_token_ids": true });
        body.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        body
    };
    let scored = server.post(COMPLETIONS, &ask(json!({ "echo": true, "logprobs": 2 })));
    let (prompt, answer) = ids(choice(&scored, 0));
    assert!(answer.is_empty());
    check_columns(choice(&scored, 0), (prompt.len(), 0));
    for fields in [
        json!({ "echo": true }),
        json!({ "echo": true, "prompt": prompt }),
        json!({ "prompt_logprobs": 0, "echo": true }),
    ] {
        let answer = server.post(COMPLETIONS, &ask(fields));
        assert_eq!(choice(&answer, 0)["text"], TEXT);
        assert_eq!(choice(&answer, 0)["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 0);
        assert_eq!(choice(&answer, 0)["logprobs"], Value::Null);
    }
    let pieces = server.stream(COMPLETIONS, &ask(json!({ "echo": true, "logprobs": 0 })));
    let tokens = pieces.iter().map(|piece| column(choice(piece, 0), "tokens").len());
    assert_eq!(tokens.sum::<usize>(), prompt.len());
    let one = json!({ "prompt": [prompt[0]], "echo": true, "logprobs": 1 });
    check_columns(choice(&server.post(COMPLETIONS, &ask(one)), 0), (1, 0));
}

/// vLLM's form: the same numbers by token ids, with ranks, beside the choices of a chat.
#[test]
fn prompt_logprobs_are_those_of_an_echo_by_token_ids() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": TEXT, "max_tokens": 0, "echo": true, "logprobs": 3,
                       "prompt_logprobs": 2, "return_token_ids": true });
    let both = server.post(COMPLETIONS, &body);
    let (whole, (prompt, _)) = (choice(&both, 0), ids(choice(&both, 0)));
    let scores = whole["prompt_logprobs"].as_array().expect("a list");
    assert_eq!((scores.len(), &scores[0]), (prompt.len(), &Value::Null));
    for (at, id) in prompt.iter().enumerate().skip(1) {
        let position = scores[at].as_object().expect("an object");
        let own = &position[&id.to_string()];
        assert_eq!(own["logprob"], column(whole, "token_logprobs")[at]);
        assert_eq!(own["decoded_token"], column(whole, "tokens")[at]);
        let mut ranks: Vec<u64> =
            position.values().map(|entry| entry["rank"].as_u64().expect("a rank")).collect();
        ranks.sort_unstable();
        let rank = own["rank"].as_u64().expect("a rank");
        assert_eq!(ranks, if rank <= 2 { vec![1, 2] } else { vec![1, 2, rank] });
    }
    let messages = json!([{ "role": "user", "content": "Count." }]);
    let chat = json!({ "messages": messages, "prompt_logprobs": 0, "max_tokens": 0,
                       "return_token_ids": true });
    let chat = server.post(CHAT, &chat);
    let scores = chat["prompt_logprobs"].as_array().expect("a list");
    assert_eq!(scores.len(), chat["prompt_token_ids"].as_array().expect("ids").len());
    assert!(
        scores[1..].iter().all(|position| position.as_object().is_some_and(|of| of.len() == 1))
    );
    assert!(choice(&chat, 0).get("prompt_logprobs").is_none());
    assert_eq!(choice(&chat, 0)["message"]["content"], "");
}

#[test]
fn a_number_out_of_range_and_a_stream_of_prompt_logprobs_are_refused() {
    let server = Server::start(&[]);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    for (path, body) in [
        (COMPLETIONS, json!({ "prompt": "a", "prompt_logprobs": 21 })),
        (COMPLETIONS, json!({ "prompt": "a", "prompt_logprobs": -1 })),
        (COMPLETIONS, json!({ "prompt": "a", "prompt_logprobs": 0, "stream": true })),
        (CHAT, json!({ "messages": messages, "prompt_logprobs": 0, "stream": true })),
    ] {
        let (status, answer) = server.request("POST", path, &body.to_string());
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("prompt_logprobs")), "{body}");
    }
}
