//! `trail-rt proxy` before a toy server.

use std::net::TcpStream;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::http::{receive, send, send_with};
use crate::common::upstream::{Flags, Seen, Upstream, begin_events, chunk, object};
use crate::common::{Response, Server, assert_refused, trail_rt};

const COMPLETIONS: &str = "/v1/completions";

/// An answer of as many tokens as the prompt's last word says, after the release of those that are
/// to wait. A stream has an event for each.
fn answer(seen: &Seen, stream: &mut TcpStream, flags: &Flags) -> std::io::Result<()> {
    let body: Value = serde_json::from_str(&seen.body).unwrap_or_default();
    let prompt = body["prompt"].as_str().unwrap_or_default();
    let tokens: usize = prompt.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(1);
    if prompt.starts_with("wait") {
        flags.wait();
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

#[test]
fn requests_go_by_arrival_until_lengths_are_learned_then_the_short_first() {
    let upstream = Upstream::start(answer);
    let folder = std::env::temp_dir().join(format!("trail-proxy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let [file, log] = ["learned.safetensors", "log.jsonl"].map(|name| folder.join(name));
    let [file, log] = [&file, &log].map(|path| path.to_str().expect("UTF-8"));
    let options = ["--slots", "1", "--predictor", file];
    let server = proxy(&upstream, &[&options[..], &["--record", log]].concat());
    let order = |server: &Server| {
        let before = upstream.seen().len();
        upstream.flags.released.store(false, SeqCst);
        let first = begin(server, "wait 1");
        upstream.wait_for(before + 1);
        let kinds = ["list all primes 300", "say hello 4", "list all primes 301", "say hello 5"];
        let waiting = kinds.map(|prompt| queue(server, &json!({ "prompt": prompt })));
        upstream.flags.released.store(true, SeqCst);
        assert_eq!(receive(first).0, 200);
        waiting.into_iter().for_each(|connection| assert_eq!(receive(connection).0, 200));
        let lengths = prompts(&upstream).into_iter().skip(before + 1);
        lengths.map(|prompt| prompt.rsplit(' ').next().expect("a word").to_owned()).collect()
    };
    let found: Vec<String> = order(&server);
    assert_eq!(found, ["300", "4", "301", "5"]);
    assert_eq!(server.metric("trail_predictions_trusted"), 0.0);
    for at in 0..32 {
        for prompt in [format!("list all primes {}", 290 + at), format!("say hello {}", 2 + at % 5)]
        {
            server.post(COMPLETIONS, &json!({ "prompt": prompt }));
        }
    }
    server.wait_for("trail_predictions_trusted", 1.0);
    let found: Vec<String> = order(&server);
    assert_eq!(found, ["4", "5", "300", "301"]);
    assert!(server.metric("trail_request_generated_tokens_sum") > 32.0 * 290.0);
    server.terminate();
    drop(server);
    // The scheduler makes the same decisions again from the log, and a new proxy knows the lengths.
    let replayed = trail_rt(&["replay", log]);
    let text = String::from_utf8_lossy(&replayed.stdout);
    assert!(replayed.status.success(), "{text}{}", String::from_utf8_lossy(&replayed.stderr));
    let advice = trail_rt(&["advise", log]);
    assert!(advice.status.success(), "{}", String::from_utf8_lossy(&advice.stderr));
    let server = proxy(&upstream, &options);
    let found: Vec<String> = order(&server);
    assert_eq!(found, ["4", "5", "300", "301"]);
    std::fs::remove_dir_all(folder).expect("the test's own folder");
}

#[test]
fn priorities_go_before_lengths_and_are_not_passed_on() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1"]);
    let first = begin(&server, "wait 1");
    upstream.wait_for(1);
    let bodies = [(3, "a 1"), (-3, "b 2"), (0, "c 3")]
        .map(|(priority, prompt)| json!({ "prompt": prompt, "priority": priority, "n": 1 }));
    let waiting = bodies.map(|body| queue(&server, &body));
    upstream.flags.released.store(true, SeqCst);
    receive(first);
    waiting.into_iter().for_each(|connection| assert_eq!(receive(connection).0, 200));
    assert_eq!(prompts(&upstream)[1..], ["b 2", "c 3", "a 1"]);
    assert_eq!(upstream.seen()[1].body, r#"{"prompt":"b 2","n":1}"#);
    let (status, refused) =
        server.request("POST", COMPLETIONS, r#"{"prompt": "a", "priority": 200}"#);
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("priority")), "{refused}");
}

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
fn a_client_that_leaves_frees_its_slot_and_the_server_learns_of_it() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1"]);
    let endless = json!({ "prompt": "a 20000", "stream": true });
    let running = server.begin(COMPLETIONS, &endless);
    upstream.wait_for(1);
    let leaves = queue(&server, &json!({ "prompt": "leaves 1" }));
    let waits = queue(&server, &json!({ "prompt": "stays 1" }));
    drop(leaves);
    server.wait_for("trail_requests_waiting", 1.0);
    drop(running);
    assert_eq!(receive(waits).0, 200);
    assert_eq!(prompts(&upstream), ["a 20000", "stays 1"]);
    let start = Instant::now();
    while upstream.left().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "the server goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
    server.wait_for("trail_requests_total{finish_reason=\"cancelled\"}", 2.0);
}

#[test]
fn a_server_that_was_killed_and_is_back_loses_no_waiting_request() {
    let upstream = Upstream::start(answer);
    let (address, server) = (upstream.address, proxy(&upstream, &["--slots", "2"]));
    let running: Vec<_> = (0..2).map(|_| begin(&server, "wait 1")).collect();
    upstream.wait_for(2);
    let waiting: Vec<_> =
        (0..20).map(|at| queue(&server, &json!({ "prompt": format!("{at} 1") }))).collect();
    drop(upstream);
    server.wait_for("trail_upstream_up", 0.0);
    let late = begin(&server, "late 1");
    // At first it says that it loads its model.
    let loading =
        Upstream::start_at(address, |_, stream, _| object(stream, "503 Service Unavailable", "{}"));
    loading.wait_for(1);
    drop(loading);
    let upstream = Upstream::start_at(address, answer);
    upstream.flags.released.store(true, SeqCst);
    for connection in running.into_iter().chain(waiting).chain([late]) {
        let (status, body) = receive(connection);
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(server.metric("trail_upstream_up"), 1.0);
    assert!(server.metric("trail_upstream_retries_total") > 0.0);
}

#[test]
fn a_request_that_ends_its_server_is_given_up() {
    let upstream = Upstream::start(|seen, stream, flags| match seen.body.contains("poison") {
        true => Err(std::io::ErrorKind::BrokenPipe.into()),
        false => answer(seen, stream, flags),
    });
    let server = proxy(&upstream, &["--slots", "1"]);
    let poison = json!({ "prompt": "poison" }).to_string();
    let (status, refused) = server.request("POST", COMPLETIONS, &poison);
    assert_eq!(
        (status, &refused["error"]["code"]),
        (502, &json!("upstream_unavailable")),
        "{refused}"
    );
    assert_eq!(upstream.seen().len(), 4);
    server.post(COMPLETIONS, &json!({ "prompt": "a 1" }));
    drop(upstream);
    let (status, refused) = server.request("GET", "/v1/models", "");
    assert_eq!(status, 502, "{refused}");
    assert!(refused["error"]["message"].to_string().contains("cannot be reached"), "{refused}");
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
fn more_than_the_queue_holds_are_refused() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1", "--max-requests", "2"]);
    let running = begin(&server, "wait 1");
    upstream.wait_for(1);
    let waits = queue(&server, &json!({ "prompt": "a 1" }));
    let refused = server.exchange("POST", COMPLETIONS, &[], "{\"prompt\": \"b 1\"}");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    upstream.flags.released.store(true, SeqCst);
    assert_eq!([receive(running).0, receive(waits).0], [200, 200]);
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

#[test]
fn keys_and_hosts_are_checked_as_by_the_server() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1", "--api-key", "secret"]);
    assert_eq!(server.exchange("GET", "/v1/models", &[], "").status, 401);
    let key = [("Authorization", "Bearer secret")];
    assert_eq!(server.exchange("GET", "/v1/models", &key, "").status, 200);
    let foreign = [("Origin", "https://evil.example"), key[0]];
    let refused =
        Response::read(&mut send_with(server.address, "POST", COMPLETIONS, &foreign, "{}"));
    assert_eq!(refused.status, 403);
    assert_eq!(server.get("/health"), (200, "ok\n".into()));
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
        (&[url[0], url[1], "--slots", "1", "--policy", "trail"], "choose sjf or fcfs"),
        (&[url[0], url[1], "--slots", "1", "--listen", "8000"], "give HOST:PORT"),
        (&[url[0], url[1], "--slots", "1", "--predictor", wrong_file], wrong_file),
        (&[url[0], url[1], "--slots", "1", "--model", "a"], "--model"),
    ] {
        assert_refused(&trail_rt(&[&["proxy"], options].concat()), 2, says);
    }
    std::fs::remove_file(wrong).expect("the test's own file");
}

/// Time that the proxy adds to a request, in a quarter of the cases at most: others have the
/// machine's processors too.
#[test]
fn the_proxy_adds_less_than_a_millisecond() {
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "1"]);
    let body = json!({ "prompt": "a short prompt 1" }).to_string();
    let lower_quartile = |address| {
        let time = |_| {
            let start = Instant::now();
            let (status, text) = receive(send(address, "POST", COMPLETIONS, &body));
            assert_eq!(status, 200, "{text}");
            start.elapsed().as_secs_f64() * 1e3
        };
        let mut all: Vec<f64> = (0..200).map(time).collect();
        all.sort_by(f64::total_cmp);
        all[50]
    };
    let alone = lower_quartile(upstream.address);
    let added = lower_quartile(server.address) - alone;
    println!("{added:.2} ms added to {alone:.2} ms");
    assert!(added < 1.0, "{added} ms beyond {alone} ms");
}

/// docs/proxy.md: the command and the request that it shows.
#[test]
fn the_example_of_the_document_works() {
    let document = include_str!("../../docs/proxy.md");
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
