//! Disconnecting clients, and shutdown of the server.

use std::io::Read;
use std::net::TcpStream;
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
