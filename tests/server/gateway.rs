//! The server as a gateway needs it: vLLM's metric names, the work in its queue, bodies in chunks.

use std::io::Write;
use std::net::TcpStream;

use crate::common::Server;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// Sends `body` in chunks of `size` bytes, as a proxy does that has seen no end of it yet.
fn post_chunks(server: &Server, body: &str, size: usize) -> (u16, Value) {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    write!(connection, "{head}Transfer-Encoding: chunked\r\n\r\n").expect("sent");
    for chunk in body.as_bytes().chunks(size) {
        write!(connection, "{:x}\r\n", chunk.len()).expect("sent");
        connection.write_all(chunk).expect("sent");
        connection.write_all(b"\r\n").expect("sent");
    }
    connection.write_all(b"0\r\n\r\n").expect("sent");
    let (status, answer) = crate::common::receive(connection);
    (status, serde_json::from_str(&answer).unwrap_or(Value::String(answer)))
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

#[test]
fn a_body_in_chunks_is_answered_as_a_whole_one() {
    let server = Server::start(&[]);
    let mut body = json!({ "prompt": "Count to ten.", "max_tokens": 12, "seed": 3 });
    let whole = server.post(COMPLETIONS, &body);
    for size in [1, 7, 4096] {
        let (status, answer) = post_chunks(&server, &body.to_string(), size);
        assert_eq!((status, text(&answer)), (200, text(&whole)), "chunks of {size} bytes");
    }
    // Beyond what is read without a permit.
    body["user"] = "u".repeat(200_000).into();
    let (status, answer) = post_chunks(&server, &body.to_string(), 8192);
    assert_eq!((status, text(&answer)), (200, text(&whole)));
}

#[test]
fn a_body_in_chunks_has_the_same_limit() {
    let server = Server::start(&[]);
    let long = json!({ "prompt": "a", "user": "u".repeat((4 << 20) + 1) });
    let (status, answer) = post_chunks(&server, &long.to_string(), 65_536);
    assert_eq!(status, 413, "{answer}");
    assert_eq!(post_chunks(&server, "{", 1).0, 400);
}

#[test]
fn metrics_have_vllms_names_too() {
    let server = Server::start(&["--kv-blocks", "100"]);
    let body = json!({ "prompt": "a", "max_tokens": 5, "ignore_eos": true });
    server.post(COMPLETIONS, &body);
    server.wait_for("trail_kv_blocks_used", 0.0);
    let labels = "{engine=\"0\",model_name=\"demo\"}";
    let prompt_tokens = server.metric("trail_prompt_tokens_total");
    for (name, value) in [
        ("num_requests_running", 0.0),
        ("num_requests_waiting", 0.0),
        ("kv_cache_usage_perc", 0.0),
        ("num_preemptions_total", 0.0),
        ("prompt_tokens_total", prompt_tokens),
        ("generation_tokens_total", 5.0),
        ("time_to_first_token_seconds_count", 1.0),
        ("inter_token_latency_seconds_count", 4.0),
        ("e2e_request_latency_seconds_count", 1.0),
        ("request_queue_time_seconds_count", 1.0),
        ("request_prefill_time_seconds_count", 1.0),
        ("request_decode_time_seconds_count", 1.0),
        ("request_inference_time_seconds_count", 1.0),
        ("request_time_per_output_token_seconds_count", 1.0),
        ("request_prompt_tokens_sum", prompt_tokens),
        ("request_generation_tokens_sum", 5.0),
        ("request_params_max_tokens_sum", 5.0),
        ("request_params_n_sum", 1.0),
        ("iteration_tokens_total_count", server.metric("trail_steps_total")),
    ] {
        assert_eq!(server.metric_of(&format!("vllm:{name}{labels}")), Some(value), "{name}");
    }
    for line in [
        "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"}",
        "vllm:request_success_total{finished_reason=\"length\",engine=\"0\",model_name=\"demo\"}",
    ] {
        assert_eq!(server.metric_of(line), Some(1.0), "{line}");
    }
}

/// The queue of a server that runs one request at a time is worth more than that request.
#[test]
fn predicted_tokens_outstanding_grow_with_the_queue() {
    let server = Server::start(&["--max-running", "1"]);
    let name = "trail:predicted_tokens_outstanding";
    assert_eq!(server.metric_of(name), Some(0.0));
    let body = json!({ "prompt": "Tell me a story.", "max_tokens": 900, "ignore_eos": true, "stream": true });
    let streams: Vec<_> = (0..8).map(|_| server.begin(COMPLETIONS, &body)).collect();
    server.wait_for("trail_requests_waiting", 7.0);
    let outstanding = server.metric_of(name).expect("a number");
    assert!((8.0..=8.0 * 900.0).contains(&outstanding), "{outstanding} tokens");
    drop(streams);
    server.wait_for(name, 0.0);
}
