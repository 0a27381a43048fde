//! Access to a server, and the life of its process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::fs::{Mode, OFlags};
#[cfg(target_os = "linux")]
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::common::deadline::Deadline;
use crate::common::{PROGRAM, Server, assert_refused, trail_rt};

const COMPLETIONS: &str = "/v1/completions";

/// Sends `head` and `body` as they are; returns the whole response.
fn raw(server: &Server, head: &str, body: &str) -> String {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let length = body.len();
    let text = format!("{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    connection.write_all(text.as_bytes()).expect("a request is sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).expect("a status")
}

fn signal(pid: u32, name: &str) {
    let killed = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(killed.expect("kill starts").success());
}

#[test]
fn a_web_page_of_another_site_cannot_use_a_loopback_server() {
    let server = Server::start(&[]);
    let post = |headers: &str| {
        let head = format!("POST {COMPLETIONS} HTTP/1.1\r\n{headers}\r\n");
        raw(&server, &head, r#"{"prompt":"a","max_tokens":1}"#)
    };
    for (headers, expected) in [
        ("Host: localhost", "200"),
        (
            "Host: localhost\r\nOrigin: http://localhost:3000\r\nContent-Type: application/json",
            "200",
        ),
        ("Host: localhost\r\nContent-Type: application/json; charset=utf-8", "200"),
        ("Host: localhost\r\nOrigin: https://evil.example", "403"),
        ("Host: localhost\r\nOrigin: null", "403"),
        ("Host: rebound.evil.example:8000", "403"),
        ("Accept: */*", "400"),
        ("Host: localhost\r\nHost: localhost", "400"),
        ("Host: a b/?c", "400"),
        ("Host: localhost\r\nContent-Type: text/plain", "415"),
        ("Host: localhost\r\nContent-Encoding: gzip", "415"),
        ("Host: localhost\r\nExpect: other", "417"),
    ] {
        let answer = post(headers);
        assert_eq!(status(&answer), expected, "{headers:?}: {answer}");
    }
    let metrics = raw(&server, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n", "");
    assert_eq!(status(&metrics), "403");
    // A request of HTTP/1.0 may have no Host, as health checks of load balancers.
    assert_eq!(status(&raw(&server, "GET /health HTTP/1.0\r\n", "")), "200");
}

#[test]
fn a_stream_is_not_buffered_by_proxies() {
    let server = Server::start(&[]);
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n");
    let answer = raw(&server, &head, r#"{"prompt":"a","max_tokens":1,"stream":true}"#);
    assert!(answer.to_ascii_lowercase().contains("\r\nx-accel-buffering: no\r\n"), "{answer}");
}

#[test]
fn the_models_length_is_what_the_cache_holds() {
    let server = Server::start(&["--kv-blocks", "16"]);
    let (_, list) = server.request("GET", "/v1/models", "");
    assert_eq!(list["data"][0]["max_model_len"], 256);
}

/// The publisher's parameters hold where a request names none.
#[test]
fn sampling_defaults_are_the_models() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    let folder = std::env::temp_dir().join(format!("trail-sampling-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(Path::new(demo).join(file), folder.join(file)).expect("a copy");
    }
    let config = folder.join("generation_config.json");
    fs::write(&config, r#"{"top_k": 1, "temperature": 5.0, "eos_token_id": 1}"#).expect("written");
    let path = folder.to_str().expect("UTF-8");
    let answers = |options: &[&str]| {
        let server = Server::start(&[&["--model", path], options].concat());
        let body = json!({ "prompt": "a", "max_tokens": 12, "ignore_eos": true, "n": 4 });
        let answer = server.post(COMPLETIONS, &body);
        let choices = answer["choices"].as_array().expect("choices").iter();
        let texts: Vec<String> = choices.map(|choice| choice["text"].to_string()).collect();
        texts
    };
    let greedy = answers(&[]);
    assert!(greedy.iter().all(|text| *text == greedy[0]), "{greedy:?}");
    let sampled = answers(&["--generation-config", "none"]);
    assert!(sampled.iter().any(|text| *text != sampled[0]), "{sampled:?}");
    fs::write(&config, r#"{"top_p": 1.5}"#).expect("written");
    let output = trail_rt(&["--model", path, "generate", "--prompt", "a"]);
    assert_refused(&output, 1, "top_p");
    let _ = fs::remove_dir_all(&folder);
}

/// A log line waits for no reader: neither requests nor the shutdown do.
#[test]
fn a_log_without_a_reader_stops_nothing() {
    let mut server = Server::start(&["--verbose"]);
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let mut reader = BufReader::new(connection.try_clone().expect("a second handle"));
    // Lines of 1 KB: together more than a pipe and the queue hold.
    let path = "x".repeat(1000);
    for _ in 0..1500 {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).expect("a request is sent");
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).expect("an answer") > 0, "the connection ended");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        reader.read_exact(&mut vec![0; length]).expect("a body");
    }
    assert!(server.metric("trail_log_lines_dropped_total") > 0.0);
    server.terminate();
    assert_eq!(server.end().0.code(), Some(0));
}

#[test]
fn a_path_in_the_log_is_printable() {
    let mut server = Server::start(&["--verbose"]);
    raw(&server, "GET /a\u{85}\u{2028}\u{202e}\u{9b}b HTTP/1.1\r\nHost: localhost\r\n", "");
    assert!(server.line().contains("GET /a\\u{85}\\u{2028}\\u{202e}\\u{9b}b 404"));
}

/// A prompt is in the log where it was asked for, and nowhere else.
#[test]
fn a_log_of_objects_has_fields_and_prompts_only_if_asked_for() {
    let body = json!({ "prompt": "Count to five.\n", "max_tokens": 2 }).to_string();
    let headers = [("X-Request-Id", "one")];
    for options in [&["--log-format", "json", "--verbose"][..], &["--log-prompts"]] {
        let mut server = Server::start(options);
        assert_eq!(server.exchange("POST", COMPLETIONS, &headers, &body).status, 200);
        let line = server.line();
        match serde_json::from_str::<Value>(&line) {
            Ok(object) => {
                assert_eq!(
                    (&object["message"], &object["level"]),
                    (&json!("request"), &json!("info"))
                );
                assert_eq!(
                    (&object["path"], &object["status"]),
                    (&json!(COMPLETIONS), &json!(200))
                );
                assert_eq!((&object["request_id"], &object["tokens"]), (&json!("one"), &json!(2)));
                assert!(object["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
                assert!(!line.contains("Count"), "{line}");
            }
            Err(_) => assert!(line.contains("Count to five.\\n"), "{line}"),
        }
    }
}

#[test]
fn a_hangup_without_a_terminal_is_no_reason_to_end() {
    let mut server = Server::start(&[]);
    signal(server.pid(), "-HUP");
    assert!(server.line().contains("SIGHUP is ignored"));
    server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1 }));
    server.terminate();
    assert_eq!(server.end().0.code(), Some(0));
}

/// As when the window of the terminal that the server runs in is closed.
#[test]
#[cfg(target_os = "linux")]
fn a_hangup_of_its_terminal_drains() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("a terminal");
    let name = ptsname(&terminal, Vec::new()).expect("a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let stderr = rustix::fs::open(&name, flags, Mode::empty()).expect("the terminal");
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--port", "0", "--threads", "1"]).stderr(stderr);
    let mut child = command.spawn().expect("the program starts");
    drop(command);
    let _deadline = Deadline::of(child.id());
    let (mut screen, mut shown) = (fs::File::from(terminal), Vec::new());
    while !String::from_utf8_lossy(&shown).contains("http://") {
        let mut piece = [0; 1024];
        let bytes = screen.read(&mut piece).expect("the terminal is open");
        shown.extend_from_slice(&piece[..bytes]);
    }
    drop(screen);
    signal(child.id(), "-HUP");
    assert_eq!(child.wait().expect("the process ends").code(), Some(0));
}

/// The load waits for a hub that never answers. A handler exists by then, as PID 1 of a container
/// would not be ended by a signal without one.
#[test]
fn a_signal_while_loading_ends_the_process() {
    let hub = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", hub.local_addr().expect("an address"));
    for (name, code) in [("-TERM", 143), ("-INT", 130)] {
        let folder = std::env::temp_dir().join(format!("trail-load-{}{name}", std::process::id()));
        let mut child = Command::new(PROGRAM)
            .args(["serve", "--port", "0", "--model", "hf:a/b"])
            .env("HF_ENDPOINT", &endpoint)
            .env("HF_HOME", &folder)
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let _deadline = Deadline::of(child.id());
        let (_connection, _) = hub.accept().expect("the load asks the hub");
        signal(child.id(), name);
        assert_eq!(child.wait().expect("the process ends").code(), Some(code));
        let _ = std::fs::remove_dir_all(&folder);
    }
}
