//! Options for those who run a server: names, the access log, metrics.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use common::Server;
use serde_json::json;

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn the_model_has_the_name_that_was_given() {
    let server = Server::start(&["--served-model-name", "my/model"]);
    let (_, list) = server.request("GET", "/v1/models", "");
    assert_eq!(list["data"][0]["id"], "my/model");
    assert_eq!(server.request("GET", "/v1/models/my/model", "").0, 200);
    let body = json!({ "model": "my/model", "prompt": "a", "max_tokens": 1 });
    assert_eq!(server.post(COMPLETIONS, &body)["model"], "my/model");
    let other = json!({ "model": "demo", "prompt": "a", "max_tokens": 1 }).to_string();
    assert_eq!(server.request("POST", COMPLETIONS, &other).0, 404);
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let mut server = Server::start(&["--verbose"]);
    let body = json!({ "prompt": "a", "max_tokens": 5, "ignore_eos": true, "n": 2 });
    server.post(COMPLETIONS, &body);
    server.stream(COMPLETIONS, &body);
    server.request("POST", COMPLETIONS, "{");
    server.request("GET", "/nowhere", "");
    for (head, tokens) in [
        ("POST /v1/completions 200 ", 10),
        ("POST /v1/completions 200 ", 10),
        ("POST /v1/completions 400 ", 0),
        ("GET /nowhere 404 ", 0),
    ] {
        let line = server.line();
        let rest = line.strip_prefix(head).unwrap_or_else(|| panic!("{head} is not in {line}"));
        let (ms, rest) = rest.split_once(" ms ").expect("a duration");
        assert!(ms.parse::<f64>().is_ok(), "{line}");
        assert_eq!(rest.trim_end(), format!("{tokens} tokens"), "{line}");
    }
}

/// The time to the first token includes that of the request's own way, from its head on.
#[test]
fn the_first_token_is_timed_from_the_head_of_the_request() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    let length = body.len();
    let head = format!("POST {COMPLETIONS} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(300));
    connection.write_all(body.as_bytes()).expect("sent");
    server.wait_for("trail_time_to_first_token_seconds_count", 1.0);
    let seconds = server.metric("trail_time_to_first_token_seconds_sum");
    assert!(seconds > 0.25, "{seconds} s");
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    for (length, says) in [("99999", "--max-model-len"), ("1", "--max-model-len")] {
        let output = common::trail_rt(&["--max-model-len", length, "generate", "--prompt", "a"]);
        common::assert_refused(&output, 2, says);
    }
    let arguments =
        ["--max-model-len", "40", "generate", "--prompt", "a", "--seed", "-7", "--ignore-eos"];
    assert!(common::trail_rt(&arguments).status.success(), "the answer ends with the context");
}
