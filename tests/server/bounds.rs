//! Memory that requests may take before the engine has admitted them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::common::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Sends a body in `n` requests at once; returns status and error of each.
fn at_once(server: &Server, n: usize, body: &str) -> Vec<(u16, Value)> {
    let ask = || {
        let (status, answer) = server.request("POST", COMPLETIONS, body);
        (status, answer["error"].clone())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    })
}

fn long_text() -> String {
    json!({ "prompt": "1".repeat(4_000_000) }).to_string()
}

fn many_prompts() -> String {
    json!({ "prompt": vec!["a"; 1_000_000] }).to_string()
}

/// A body of 4 MB whose unknown field is a hundred times as large once it is parsed.
fn deep_json() -> String {
    let objects = vec![r#"{"":0}"#; 520_000].join(",");
    format!(r#"{{"prompt":"x","max_tokens":1,"zz":[{objects}]}}"#)
}

#[test]
fn a_text_that_cannot_fit_is_not_tokenized() {
    let server = Server::start(&[]);
    // The demo model has tokens of up to three digits, and a context of 1024 tokens. A refusal
    // after tokenizing says how many tokens there are, not how many at least.
    let long = "1".repeat(3 * 1024 + 100);
    // By its bytes it could fit, as a token of special text has 13; by its first words it cannot.
    let words = "stain|".repeat(2100);
    for (path, body, field) in [
        (COMPLETIONS, json!({ "prompt": words }), "prompt"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": words }] }), "messages"),
        (COMPLETIONS, json!({ "prompt": long }), "prompt"),
        (COMPLETIONS, json!({ "prompt": ["a", long] }), "prompt"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": long }] }), "messages"),
    ] {
        let (status, answer) = server.request("POST", path, &body.to_string());
        let error = &answer["error"];
        assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{answer}");
        assert_eq!(error["param"], field);
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("at least: shorten it"), "{message}");
    }
}

#[test]
fn a_list_of_too_many_prompts_is_refused_as_it_is_read() {
    let server = Server::start(&[]);
    for prompt in [json!(vec!["a"; 129]), json!(vec![[5]; 129])] {
        let body = json!({ "prompt": prompt }).to_string();
        let (status, answer) = server.request("POST", COMPLETIONS, &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("prompt")), "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("more than 128 prompts"), "{message}");
    }
}

#[test]
fn large_bodies_take_bounded_memory() {
    let server = Server::start(&[]);
    let before = server.megabytes("VmRSS");
    for body in [long_text(), many_prompts()] {
        for (status, error) in at_once(&server, 16, &body) {
            assert_eq!((status, &error["param"]), (400, &json!("prompt")), "{error}");
        }
        let grown = server.megabytes("VmHWM") - before;
        assert!(grown < 200.0, "16 bodies of 4 MB took {grown} MB");
    }
}

#[test]
fn large_bodies_do_not_end_a_small_machine() {
    let server = Server::start_under("-v 4000000", &[]);
    for (n, body, expected) in [(16, long_text(), 400), (24, deep_json(), 200)] {
        for (status, error) in at_once(&server, n, &body) {
            assert_eq!(status, expected, "{error}");
        }
    }
    assert_eq!(server.get("/health").0, 200);
}

#[test]
fn small_requests_pass_large_ones_that_wait() {
    let server = Server::start(&["--body-timeout", "2"]);
    // Four bodies of 4 MiB share the bytes of large bodies; these never come to their end.
    let halves: Vec<TcpStream> = (0..5).map(|_| half_body(&server, 4 << 20)).collect();
    let answer = server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1 }));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    // The share of a body that took too long is free for the next.
    let (status, _) = server.request("POST", COMPLETIONS, &long_text());
    assert_eq!(status, 400);
    for mut half in halves {
        let mut answer = String::new();
        half.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
}

#[test]
fn large_requests_pass_senders_that_stop() {
    let server = Server::start(&["--body-timeout", "3600"]);
    let halves: Vec<TcpStream> = (0..40).map(|_| half_body(&server, 4 << 20)).collect();
    let user = "x".repeat(80_000);
    server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1, "user": user }));
    drop(halves);
}

/// Sends the header and 100 kB of a body of `length` bytes.
fn half_body(server: &Server, length: usize) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).expect("the head is sent");
    connection.write_all(&[b' '; 100_000]).expect("half the body is sent");
    connection
}
