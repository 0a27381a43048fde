//! Servers that fail, and answers that are late.

use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{COMPLETIONS, answer, begin, prompts, proxy, queue};
use crate::common::Server;
use crate::common::http::{receive, send};
use crate::common::upstream::{Upstream, begin_events, chunk, object};

/// Ends `upstream`, and waits until `server` has sent so many requests again in vain.
fn end(upstream: Upstream, server: &Server, retries: f64) {
    let before = server.metric("trail_upstream_retries_total");
    drop(upstream);
    let start = Instant::now();
    while server.metric("trail_upstream_retries_total") < before + retries {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing is sent again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_that_was_killed_and_is_back_loses_no_waiting_request() {
    let upstream = Upstream::start(answer);
    let (address, server) = (upstream.address, proxy(&upstream, &["--slots", "2"]));
    let running: Vec<_> = (0..2).map(|_| begin(&server, "wait 1")).collect();
    upstream.wait_for(2);
    let waiting: Vec<_> =
        (0..20).map(|at| queue(&server, &json!({ "prompt": format!("{at} 1") }))).collect();
    // By then both have been sent again.
    end(upstream, &server, 5.0);
    assert_eq!(server.metric("trail_upstream_up"), 0.0);
    let late = begin(&server, "late 1");
    // At first it says that it loads its model.
    let loading =
        Upstream::start_at(address, |_, stream, _| object(stream, "503 Service Unavailable", "{}"));
    loading.wait_for(1);
    end(loading, &server, 2.0);
    let upstream = Upstream::start_at(address, answer);
    upstream.flags.released.store(true, SeqCst);
    for connection in running.into_iter().chain(waiting).chain([late]) {
        let (status, body) = receive(connection);
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(server.metric("trail_upstream_up"), 1.0);
    assert!(server.metric("trail_upstream_retries_total") > 0.0);
}

/// The server ends with each answer that it begins, and another one comes.
#[test]
fn a_request_that_ends_its_server_is_given_up() {
    let mut upstream = Upstream::start(answer);
    let (address, server) = (upstream.address, proxy(&upstream, &["--slots", "1"]));
    let poison = begin(&server, "wait 1");
    for _ in 0..2 {
        upstream.wait_for(1);
        end(upstream, &server, 1.0);
        upstream = Upstream::start_at(address, answer);
    }
    upstream.wait_for(1);
    drop(upstream);
    let (status, refused) = receive(poison);
    assert!(status == 502 && refused.contains("upstream_unavailable"), "{refused}");
    let upstream = Upstream::start_at(address, answer);
    server.post(COMPLETIONS, &json!({ "prompt": "a 1" }));
    assert_eq!(prompts(&upstream), ["a 1"]);
}

/// llama.cpp closes a connection after a stream, and does not say so.
#[test]
fn a_request_after_a_stream_is_not_lost_with_its_connection() {
    let upstream = Upstream::start(|seen, stream, flags| {
        answer(seen, stream, flags)?;
        std::thread::sleep(Duration::from_millis(20));
        Err(ErrorKind::ConnectionAborted.into())
    });
    let server = proxy(&upstream, &["--slots", "1"]);
    let body = json!({ "prompt": "a 1", "stream": true });
    let connections: Vec<_> = (0..5).map(|_| server.begin(COMPLETIONS, &body)).collect();
    for connection in connections {
        let (status, body) = receive(connection);
        assert_eq!(status, 200, "{body}");
    }
}

/// Its listener takes a connection when those of requests are closed already.
#[test]
fn a_server_that_is_ending_has_not_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = Server::proxy(&["--upstream", &format!("http://{address}"), "--slots", "1"]);
    let running = begin(&server, "a 1");
    let (mut request, _) = listener.accept().expect("a connection");
    assert!(request.read(&mut [0; 64]).expect("a request") > 0);
    drop(request);
    let look = listener.accept().expect("a connection");
    drop(listener);
    drop(look);
    let _upstream = Upstream::start_at(address, answer);
    assert_eq!(receive(running).0, 200);
}

/// A server that is there has closed the connection for a reason, and a request is work.
#[test]
fn a_request_without_an_answer_is_not_sent_again_to_a_server_that_is_there() {
    let upstream = Upstream::start(|seen, stream, flags| match seen.body.contains("poison") {
        true => Err(std::io::ErrorKind::BrokenPipe.into()),
        false => answer(seen, stream, flags),
    });
    let address = upstream.address.to_string();
    let mut server = proxy(&upstream, &["--slots", "1"]);
    let poison = json!({ "prompt": "poison" }).to_string();
    let (status, refused) = server.request("POST", COMPLETIONS, &poison);
    let code = &refused["error"]["code"];
    assert_eq!((status, code), (502, &json!("upstream_unavailable")), "{refused}");
    assert_eq!(upstream.seen().len(), 1);
    let line = server.line();
    assert!(line.contains(&format!("{address} gave no answer: ")), "{line}");
    server.post(COMPLETIONS, &json!({ "prompt": "a 1" }));
    // One line says that it is down, and one that it is back; clients do not learn where it is.
    drop(upstream);
    for _ in 0..2 {
        let (status, down) = server.request("GET", "/v1/models", "");
        assert_eq!(status, 502, "{down}");
        let message = down["error"]["message"].as_str().expect("a message");
        assert_eq!(message, "the server behind the proxy cannot be reached");
    }
    let line = server.line();
    assert!(line.contains(&format!("warning: the server at http://{address} cannot be")), "{line}");
    assert_eq!(server.metric("trail_upstream_up"), 0.0);
    let port = address.parse().expect("an address");
    let _upstream = Upstream::start_at(port, answer);
    server.post(COMPLETIONS, &json!({ "prompt": "a 1" }));
    let line = server.line();
    assert!(line.contains(&format!("the server at http://{address} answers again")), "{line}");
    assert_eq!(server.metric("trail_upstream_up"), 1.0);
}

#[test]
fn a_busy_server_is_not_down() {
    let upstream =
        Upstream::start(|_, stream, _| object(stream, "503 Service Unavailable", "{\"busy\":1}"));
    let server = proxy(&upstream, &["--slots", "1", "--retry-seconds", "1"]);
    let busy = begin(&server, "a 1");
    upstream.wait_for(3);
    assert_eq!(server.metric("trail_upstream_up"), 1.0);
    assert_eq!(receive(busy), (503, "{\"busy\":1}".to_owned()));
}

/// It takes the connection, and no more.
#[test]
fn a_handshake_has_an_end() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let options = ["--upstream", &url, "--slots", "1", "--retry-seconds", "0"];
    let server = Server::proxy(&options);
    let start = Instant::now();
    assert_eq!(receive(begin(&server, "a 1")).0, 502);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// Neither an error nor an answer without tokens says anything about lengths.
#[test]
fn errors_and_what_cannot_be_counted_are_no_answers_of_0_tokens() {
    let upstream = Upstream::start(|seen, stream, _| match seen.body.contains("bad") {
        true => object(stream, "400 Bad Request", "{\"choices\":[{\"text\":\"abcd\"}]}"),
        false => object(stream, "200 OK", "{}"),
    });
    let server = proxy(&upstream, &["--slots", "1"]);
    assert_eq!(server.request("POST", COMPLETIONS, "{\"prompt\": \"bad\"}").0, 400);
    server.wait_for("trail_requests_total{finish_reason=\"error\"}", 1.0);
    assert_eq!(server.metric("trail_request_latency_seconds_count"), 0.0);
    server.post(COMPLETIONS, &json!({ "prompt": "good" }));
    server.wait_for("trail_requests_total{finish_reason=\"stop\"}", 1.0);
    assert_eq!(server.metric("trail_request_latency_seconds_count"), 1.0);
    assert_eq!(server.metric("trail_request_generated_tokens_count"), 0.0);
}

/// A stream whose head comes at once, and its first event too late.
#[test]
fn the_wait_for_a_stream_ends_with_its_first_event() {
    let upstream = Upstream::start(|seen, stream, flags| {
        if !seen.body.contains("silent") {
            return answer(seen, stream, flags);
        }
        begin_events(stream)?;
        chunk(stream, ": it is there\n\n")?;
        flags.wait()?;
        chunk(stream, "")
    });
    let server = proxy(&upstream, &["--slots", "2"]);
    let stream = |prompt: &str| {
        let body = json!({ "prompt": prompt, "stream": true, "max_wait_ms": 500 }).to_string();
        receive(send(server.address, "POST", COMPLETIONS, &body))
    };
    let (status, text) = stream("silent");
    assert!(status == 200 && text.contains("deadline_exceeded"), "{text}");
    server.wait_for("trail_requests_total{finish_reason=\"deadline\"}", 1.0);
    // The end of a stream may come later.
    let (status, text) = stream("a 1000");
    assert!(status == 200 && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[test]
fn what_is_late_is_given_up() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1"]);
    let running = begin(&server, "wait 1");
    upstream.wait_for(1);
    for field in ["max_wait_ms", "deadline_ms"] {
        let body = json!({ "prompt": "a 1", field: 50 }).to_string();
        let (status, late) = server.request("POST", COMPLETIONS, &body);
        let error = &late["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (504, &json!("deadline_exceeded"), &json!(field)),
            "{late}"
        );
    }
    upstream.flags.released.store(true, SeqCst);
    assert_eq!(receive(running).0, 200);
    // In a stream the status is sent: an event has the error.
    let body = json!({ "prompt": "a 20000", "stream": true, "deadline_ms": 200 }).to_string();
    let (status, text) = receive(send(server.address, "POST", COMPLETIONS, &body));
    assert!(status == 200 && text.contains("deadline_exceeded"), "{text}");
    server.wait_for("trail_requests_total{finish_reason=\"deadline\"}", 3.0);
    server.post(COMPLETIONS, &json!({ "prompt": "a 1" }));
}

#[test]
fn a_drain_finishes_what_waits_and_cuts_it_at_its_end() {
    for (seconds, is_released) in [("600", true), ("1", false)] {
        let upstream = Upstream::start(answer);
        let mut server = proxy(&upstream, &["--slots", "1", "--drain-seconds", seconds]);
        let running = begin(&server, "wait 1");
        upstream.wait_for(1);
        let waits = queue(&server, &json!({ "prompt": "a 1" }));
        server.terminate();
        let start = Instant::now();
        while server.get("/health").0 != 503 {
            assert!(start.elapsed() < Duration::from_secs(30), "the proxy does not drain");
        }
        assert_eq!(server.request("POST", COMPLETIONS, "{\"prompt\": \"b\"}").0, 503);
        upstream.flags.released.store(is_released, SeqCst);
        let expected = if is_released { 200 } else { 503 };
        assert_eq!([receive(running).0, receive(waits).0], [expected; 2]);
        let (status, output) = server.end();
        assert_eq!(status.code(), Some(i32::from(!is_released)), "{output}");
        assert!(output.contains("trail-rt finishes 2 requests"), "{output}");
        upstream.flags.released.store(true, SeqCst);
    }
}
