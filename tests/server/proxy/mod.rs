//! `trail-rt proxy` before a toy server.

mod failures;
mod keys;
mod order;
mod passing;

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::Server;
use crate::common::upstream::{Flags, Seen, Upstream, begin_events, chunk, object};

const COMPLETIONS: &str = "/v1/completions";

/// An answer of as many tokens as the prompt's last word says, after the release of those that are
/// to wait. A stream has an event for each.
fn answer(seen: &Seen, stream: &mut TcpStream, flags: &Flags) -> std::io::Result<()> {
    let body: Value = serde_json::from_str(&seen.body).unwrap_or_default();
    let prompt = body["prompt"].as_str().unwrap_or_default();
    let tokens: usize = prompt.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(1);
    if prompt.starts_with("wait") {
        flags.wait()?;
    }
    let usage = format!("{{\"choices\":[],\"usage\":{{\"completion_tokens\":{tokens}}}}}");
    if body["stream"] != true {
        return object(stream, "200 OK", &usage);
    }
    begin_events(stream)?;
    for _ in 0..tokens {
        chunk(stream, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")?;
        std::thread::sleep(Duration::from_millis(1));
    }
    chunk(stream, &format!("data: {usage}\n\ndata: [DONE]\n\n"))?;
    chunk(stream, "")
}

fn proxy(upstream: &Upstream, options: &[&str]) -> Server {
    Server::proxy(&[&["--upstream", &upstream.url()], options].concat())
}

fn begin(server: &Server, prompt: &str) -> TcpStream {
    server.begin(COMPLETIONS, &json!({ "prompt": prompt }))
}

/// Sends a request that waits in the proxy, after those before it.
fn queue(server: &Server, body: &Value) -> TcpStream {
    let waiting = server.metric("trail_requests_waiting");
    let connection = server.begin(COMPLETIONS, body);
    server.wait_for("trail_requests_waiting", waiting + 1.0);
    connection
}

fn prompts(upstream: &Upstream) -> Vec<String> {
    let prompt = |seen: Seen| {
        let body: Value = serde_json::from_str(&seen.body).expect("JSON");
        body["prompt"].as_str().expect("a prompt").to_owned()
    };
    upstream.seen().into_iter().map(prompt).collect()
}
