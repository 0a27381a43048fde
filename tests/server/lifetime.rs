//! Disconnecting clients, and shutdown of the server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::common::Server;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn long(stream: bool) -> Value {
    json!({ "prompt": "a", "max_tokens": 900, "ignore_eos": true, "stream": stream })
}

#[test]
fn a_client_that_leaves_frees_its_request() {
    for stream in [true, false] {
        let server = Server::start(&[]);
        let mut connection = server.begin(COMPLETIONS, &long(stream));
        server.wait_for("trail_requests_running", 1.0);
        if stream {
            connection.read_exact(&mut [0; 64]).expect("the answer begins");
        }
        drop(connection);
        server.wait_for("trail_requests_running", 0.0);
        server.wait_for("trail_requests_total{finish_reason=\"cancelled\"}", 1.0);
        server.wait_for("trail_kv_blocks_used", 0.0);
        let generated = server.metric("trail_generated_tokens_total");
        assert!(generated < 900.0, "it went on to the end");
    }
}

/// Sends a request of HTTP/1.1 for `body` with the bytes `before` and `after` it.
fn send(server: &Server, before: &str, body: &Value, after: &str) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let (body, head) = (body.to_string(), format!("POST {COMPLETIONS} HTTP/1.1\r\n{HOST}"));
    let text = format!("{before}{head}Content-Length: {}\r\n\r\n{body}{after}", body.len());
    connection.write_all(text.as_bytes()).expect("a request is sent");
    connection
}

const HOST: &str = "Host: localhost\r\n";
const LIVE: &str = "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Bytes behind a request hide the end of the stream from a reader of one request at a time.
#[test]
fn a_client_that_leaves_is_noticed_whatever_follows_its_request() {
    let server = Server::start(&[]);
    let mut left = 0.0;
    for stream in [true, false] {
        for after in ["", "\r\n", "x", LIVE] {
            // A socket closed on an answer that was not read is reset; another sends a FIN.
            for before in [LIVE, ""] {
                let connection = send(&server, before, &long(stream), after);
                server.wait_for("trail_requests_running", 1.0);
                drop(connection);
                left += 1.0;
                server.wait_for("trail_requests_total{finish_reason=\"cancelled\"}", left);
                server.wait_for("trail_requests_running", 0.0);
            }
        }
    }
}

#[test]
fn a_client_that_waits_in_the_queue_and_leaves_is_noticed() {
    let server = Server::start(&["--max-running", "1"]);
    let first = send(
        &server,
        "",
        &json!({ "prompt": "a", "max_tokens": 1000,
        "ignore_eos": true, "stream": true, "n": 20 }),
        "",
    );
    server.wait_for("trail_requests_waiting", 19.0);
    let second = send(&server, "", &long(true), "");
    server.wait_for("trail_requests_waiting", 20.0);
    drop(second);
    server.wait_for("trail_requests_total{finish_reason=\"cancelled\"}", 1.0);
    drop(first);
}

#[test]
fn a_client_that_writes_no_more_gets_its_answer() {
    let server = Server::start(&[]);
    for stream in [true, false] {
        let mut body = long(stream);
        body["n"] = 2.into();
        let mut connection = send(&server, "", &body, "");
        connection.shutdown(Shutdown::Write).expect("shut down");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("the whole answer");
        let answer = answer.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(answer.matches("\"finish_reason\":\"length\"").count(), 2, "{answer}");
    }
}

#[test]
fn a_signal_lets_running_requests_finish() {
    let mut server = Server::start(&[]);
    let mut connection = server.begin(COMPLETIONS, &long(true));
    server.wait_for("trail_requests_running", 1.0);
    server.terminate();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("the whole answer");
    assert!(answer.trim_end().ends_with("data: [DONE]"), "{answer}");
    assert!(answer.contains("\"finish_reason\":\"length\""));
    let (status, output) = server.end();
    assert!(status.success(), "{status}: {output}");
    assert_eq!(output.lines().count(), 1, "{output}");
    assert!(TcpStream::connect_timeout(&server.address, Duration::from_secs(1)).is_err());
}

#[test]
fn a_host_may_be_a_name() {
    let server = Server::start(&["--host", "localhost"]);
    assert!(server.address.ip().is_loopback());
    assert_eq!(server.get("/health").0, 200);
}
