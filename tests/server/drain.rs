//! The end of a server: requests that are running, half sent, or not read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::Server;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn stream(max_tokens: u32) -> Value {
    json!({ "prompt": "a", "max_tokens": max_tokens, "ignore_eos": true, "stream": true })
}

fn connect(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    connection.write_all(bytes).expect("sent");
    connection
}

fn read(mut connection: TcpStream) -> String {
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("the whole answer");
    answer
}

/// Opens connections that have no complete request: silent, idle after a request, half a header,
/// half a body.
fn half_requests(server: &Server) -> [TcpStream; 4] {
    let mut idle = connect(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut byte = [0];
    idle.read_exact(&mut byte).expect("an answer");
    let post =
        format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{");
    [
        connect(server, b""),
        idle,
        connect(server, b"GET /health HTTP/1.1\r\nHos"),
        connect(server, post.as_bytes()),
    ]
}

/// Sends a signal and waits until the server drains. Every request is answered: one that is on its
/// way when the drain begins, too.
fn terminate(server: &Server) {
    server.terminate();
    let start = Instant::now();
    while server.get("/health").0 != 503 {
        assert!(start.elapsed() < Duration::from_secs(30), "the server does not drain");
    }
}

/// Starts a server that runs one request at a time, and 40 requests of 900 tokens: work that lasts
/// many times longer than what a test does meanwhile. The first stream is served first.
fn busy_server(drain_seconds: &str) -> (Server, Vec<TcpStream>) {
    let options = ["--drain-seconds", drain_seconds, "--max-running", "1", "--policy", "fcfs"];
    let server = Server::start(&options);
    let first = server.begin(COMPLETIONS, &stream(900));
    wait_for_requests(&server, 1.0);
    let others = (1..40).map(|_| server.begin(COMPLETIONS, &stream(900)));
    let streams = std::iter::once(first).chain(others).collect();
    wait_for_requests(&server, 40.0);
    (server, streams)
}

/// Waits until the engine has as many requests, or has begun to answer them.
fn wait_for_requests(server: &Server, expected: f64) {
    let waiting = || server.metric("trail_requests_waiting");
    let begun = || server.metric("trail_time_to_first_token_seconds_count");
    let start = Instant::now();
    while waiting() + begun() < expected {
        assert!(start.elapsed() < Duration::from_secs(30), "the requests do not arrive");
    }
}

#[test]
fn half_requests_do_not_hold_up_the_end() {
    let mut server = Server::start(&["--drain-seconds", "600"]);
    let halves = half_requests(&server);
    // All four are accepted, and the last one's header is read.
    server.wait_for("trail_requests_running", 0.0);
    server.terminate();
    let (status, output) = server.end();
    assert!(status.success(), "{status}: {output}");
    drop(halves);
}

#[test]
fn running_requests_are_finished() {
    let mut server = Server::start(&["--drain-seconds", "600", "--policy", "fcfs"]);
    let halves = half_requests(&server);
    let running: Vec<_> = (0..20).map(|_| server.begin(COMPLETIONS, &stream(60))).collect();
    wait_for_requests(&server, 20.0);
    server.terminate();
    for connection in running {
        let answer = read(connection);
        assert!(answer.trim_end().ends_with("data: [DONE]"), "{answer}");
        assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
    }
    let (status, output) = server.end();
    assert!(status.success(), "{status}: {output}");
    drop(halves);
}

#[test]
fn a_draining_server_is_observed_but_takes_nothing() {
    let (mut server, mut streams) = busy_server("600");
    terminate(&server);
    assert!(server.metric("trail_requests_waiting") > 0.0);
    assert_eq!(server.get("/live"), (200, "ok\n".into()));
    for (method, path) in [("POST", COMPLETIONS), ("GET", "/v1/models")] {
        let (status, answer) = server.request(method, path, "{}");
        assert_eq!((status, &answer["error"]["type"]), (503, &json!("server_error")), "{answer}");
    }
    // More than the sockets' buffers hold: the status arrives all the same.
    let long = json!({ "prompt": "a".repeat(4_000_000) }).to_string();
    assert_eq!(server.request("POST", COMPLETIONS, &long).0, 503);
    let first = streams.swap_remove(0);
    assert!(read(first).trim_end().ends_with("data: [DONE]"));
    // The server cancels the requests of the clients that are gone.
    drop(streams);
    assert!(server.end().0.success());
}

#[test]
fn the_deadline_cuts_what_is_left() {
    let (mut server, streams) = busy_server("1");
    // 30 MB of responses that are not read: more than the buffers of both sockets.
    let stalled =
        connect(&server, &b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(5000));
    let mut whole = stream(900);
    whole["stream"] = false.into();
    let whole = server.begin(COMPLETIONS, &whole);
    wait_for_requests(&server, 41.0);
    server.terminate();
    let (status, answer) = crate::common::receive(whole);
    assert_eq!(status, 503, "{answer}");
    let mut cut = 0;
    for connection in streams {
        let answer = read(connection);
        let is_cut = answer.contains("shut down before the answer was complete");
        assert!(is_cut || answer.trim_end().ends_with("data: [DONE]"), "{answer}");
        cut += usize::from(is_cut);
    }
    assert!(cut > 0, "40 answers of 900 tokens in a second");
    let (status, output) = server.end();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("responses were cut after 1 s"), "{output}");
    drop(stalled);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let (mut server, streams) = busy_server("600");
    terminate(&server);
    server.terminate();
    assert_eq!(server.end().0.code(), Some(1));
    drop(streams);
}
