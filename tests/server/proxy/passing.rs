//! Heads and bodies in both directions, and the command line.

use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::json;

use super::{COMPLETIONS, answer, begin, proxy};
use crate::common::http::{receive, send};
use crate::common::upstream::{Upstream, begin_events, chunk, object};
use crate::common::{Server, assert_refused, trail_rt};

/// Heads and bodies pass in both directions as they are.
#[test]
fn requests_and_answers_pass_through_byte_for_byte() {
    const EVENTS: [&str; 4] = [
        ": a comment\n\nid: 1\r\ndata: {\"choices\": [ {\"text\":\"\u{e4}",
        "\"} ]}\r\n\r\nda",
        "ta: {\"odd\" :1}\n\n",
        "data: [DONE]\n\n",
    ];
    let upstream = Upstream::start(|seen, stream, _| match &*seen.line {
        "POST /v1/chat/completions?a=%20b HTTP/1.1" => {
            begin_events(stream)?;
            EVENTS.iter().try_for_each(|event| chunk(stream, event))?;
            chunk(stream, "")
        }
        "GET /v1/models HTTP/1.1" => object(stream, "418 I'm a teapot", "{ \"data\": [] }"),
        line => object(stream, "400 Bad Request", &format!("{{ \"line\": {line:?} }}")),
    });
    let server = proxy(&upstream, &["--slots", "2"]);
    let body = "{ \"messages\" : [],\n \"seed\":1.50, \"stream\":true }";
    let headers = [
        ("Authorization", "Bearer sk-a"),
        ("X-Other", "b"),
        ("Connection", "x-mine"),
        ("X-Mine", "c"),
        ("X-Request-Id", "mine"),
    ];
    let path = "/v1/chat/completions?a=%20b";
    let answer = server.exchange("POST", path, &headers, body);
    assert_eq!((answer.status, answer.body), (200, EVENTS.concat()));
    let seen = &upstream.seen()[0];
    assert_eq!(seen.body, body);
    let passed =
        ["authorization", "x-other", "x-mine", "x-request-id"].map(|name| seen.header(name));
    assert_eq!(passed, [Some("Bearer sk-a"), Some("b"), None, Some("mine")]);
    assert_eq!(seen.header("host"), Some(&*upstream.address.to_string()));
    let models = server.exchange("GET", "/v1/models", &[], "");
    assert_eq!((models.status, &*models.body), (418, "{ \"data\": [] }"));
    assert_eq!(models.header("content-type"), Some("application/json"));
    // Whatever the type of the body, on a path that does not generate.
    let form = [("Content-Type", "multipart/form-data; boundary=a")];
    let audio = server.exchange("POST", "/v1/audio/transcriptions", &form, "--a\r\n");
    assert_eq!((audio.status, &*upstream.seen()[2].body), (400, "--a\r\n"));
    // An error of the server's is its own.
    let refused = server.exchange("POST", "/v1/completions", &[], "no JSON");
    assert_eq!((refused.status, &*upstream.seen()[3].body), (400, "no JSON"));
}

#[test]
fn bad_options_are_one_line() {
    let url = ["--upstream", "http://127.0.0.1:9"];
    let wrong = std::env::temp_dir().join(format!("trail-proxy-wrong-{}", std::process::id()));
    std::fs::write(&wrong, "no predictor").expect("a file");
    let wrong_file = wrong.to_str().expect("UTF-8");
    for (options, says) in [
        (&["--slots", "1"][..], "--upstream"),
        (&url[..], "--slots"),
        (&[url[0], url[1], "--slots", "0"], "--slots"),
        (&[url[0], "127.0.0.1:9", "--slots", "1"], "--upstream 127.0.0.1:9: give http://HOST:PORT"),
        (&[url[0], "http://a:b@127.0.0.1:9", "--slots", "1"], "--upstream: leave the user"),
        (&[url[0], url[1], "--slots", "1", "--policy", "trail"], "choose sjf or fcfs"),
        (&[url[0], url[1], "--slots", "1", "--listen", "8000"], "give HOST:PORT"),
        (&[url[0], url[1], "--slots", "1", "--predictor", wrong_file], wrong_file),
        (&[url[0], url[1], "--slots", "1", "--model", "a"], "--model"),
    ] {
        assert_refused(&trail_rt(&[&["proxy"], options].concat()), 2, says);
    }
    std::fs::remove_file(wrong).expect("the test's own file");
}

/// docs/proxy.md: the command and the request that it shows.
#[test]
fn the_example_of_the_document_works() {
    let document = include_str!("../../../docs/proxy.md");
    let line = |start: &str| {
        let found = document.lines().find_map(|line| line.strip_prefix(start));
        found.expect("the document has the line").split('#').next().expect("a line")
    };
    let upstream = Upstream::start(answer);
    let url = upstream.url();
    let options = line("trail-rt proxy ").replace("http://127.0.0.1:8080", &url);
    let server = Server::proxy(&options.split_whitespace().collect::<Vec<_>>());
    let path = line("curl http://127.0.0.1:8000").split(' ').next().expect("a path");
    let body = line("     -d '").trim_end().trim_end_matches('\'');
    let answer = server.exchange("POST", path, &[("Content-Type", "application/json")], body);
    assert_eq!((answer.status, &*upstream.seen()[0].body), (200, body));
}

/// Servers read these paths as the one that waits.
#[test]
fn another_spelling_of_a_path_waits_as_well() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1"]);
    let running = begin(&server, "wait 1");
    upstream.wait_for(1);
    let body = json!({ "prompt": "a 1", "priority": 3 }).to_string();
    let paths = ["/v1/%63ompletions", "/v1/completions/", "//v1//completions", "/v1%2fcompletions"];
    let mut waiting = Vec::new();
    for path in paths {
        waiting.push(send(server.address, "POST", path, &body));
        server.wait_for("trail_requests_waiting", waiting.len() as f64);
    }
    let up = server.exchange("POST", "/v1/x/../completions", &[], &body);
    assert_eq!((up.status, upstream.seen().len()), (400, 1), "{}", up.body);
    upstream.flags.released.store(true, SeqCst);
    for connection in [running].into_iter().chain(waiting) {
        assert_eq!(receive(connection).0, 200);
    }
    // As they were written.
    let seen: Vec<String> = upstream.seen().into_iter().skip(1).map(|seen| seen.line).collect();
    assert_eq!(seen, paths.map(|path| format!("POST {path} HTTP/1.1")));
    assert_eq!(upstream.seen()[1].body, "{\"prompt\":\"a 1\"}");
}

/// Tokens of a compressed answer could not be counted.
#[test]
fn an_answer_is_not_compressed_and_keeps_its_id() {
    let upstream = Upstream::start(|_, stream, _| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Request-Id: theirs\r\n";
        write!(stream, "{head}Request-Id: theirs too\r\n\r\n{{}}")
    });
    let server = proxy(&upstream, &["--slots", "1"]);
    let headers = [("Accept-Encoding", "gzip"), ("X-Request-Id", "mine")];
    for (path, encoding) in
        [(COMPLETIONS, None), ("/v1/messages", None), ("/v1/embeddings", Some("gzip"))]
    {
        let answer = server.exchange("POST", path, &headers, "{}");
        assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("theirs")), "{path}");
        assert_eq!(answer.header("request-id"), Some("theirs too"), "{path}");
        let seen = upstream.seen().pop().expect("it was sent");
        assert_eq!(seen.header("accept-encoding"), encoding, "{path}");
        assert_eq!(seen.header("x-request-id"), Some("mine"), "{path}");
    }
}

/// As a process leaves it that was killed while it made sure that it can write the file.
#[test]
fn an_empty_predictor_is_none() {
    let upstream = Upstream::start(answer);
    let file = std::env::temp_dir().join(format!("trail-proxy-empty-{}", std::process::id()));
    std::fs::write(&file, "").expect("a file");
    let path = file.to_str().expect("UTF-8");
    let server = proxy(&upstream, &["--slots", "1", "--predictor", path]);
    assert_eq!(server.metric("trail_predictions_trusted"), 0.0);
    server.post(COMPLETIONS, &json!({ "prompt": "a 1" }));
    std::fs::remove_file(file).expect("the test's own file");
}
