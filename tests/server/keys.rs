//! API keys: requests with and without, limits, reload, and the prefix cache of a key.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{Response, Server, assert_refused, trail_rt};
use serde_json::json;

const COMPLETIONS: &str = "/v1/completions";

/// A file of keys, removed at the end of its test.
pub(super) struct KeyFile(PathBuf);

impl KeyFile {
    pub(super) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trail-{name}-{}.toml", std::process::id()));
        let file = KeyFile(path);
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).expect("written");
    }

    pub(super) fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn short() -> String {
    json!({ "prompt": "a", "max_tokens": 1 }).to_string()
}

/// Sends a completion with a key.
fn complete(server: &Server, key: &str, body: &str) -> Response {
    let bearer = format!("Bearer {key}");
    server.exchange("POST", COMPLETIONS, &[("Authorization", &bearer)], body)
}

#[test]
fn requests_need_a_key_where_there_are_keys() {
    let file = KeyFile::new("keys", "[[keys]]\nname = \"ops\"\nkey = \"sk-ops\"\n");
    let options = ["--api-keys", file.path(), "--verbose"];
    let mut server = Server::start_in(&options, &[("TRAIL_API_KEY", "sk-own")]);
    for path in ["/health", "/live", "/metrics"] {
        assert_eq!(server.get(path).0, 200, "{path}");
        assert!(server.line().contains(" 200 "));
    }
    for (path, method) in [(COMPLETIONS, "POST"), ("/v1/models", "GET"), ("/v1/none", "GET")] {
        let refused = server.exchange(method, path, &[("x-api-key", "sk-wrong")], &short());
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        assert!(!server.line().contains("sk-"));
    }
    let answer = complete(&server, "sk-own", &short());
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(server.line().trim_end().ends_with(" of default"));
    let headers = [("X-Api-Key", "sk-ops"), ("X-Request-Id", "from-me")];
    let answer = server.exchange("POST", COMPLETIONS, &headers, &short());
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("from-me")));
    let line = server.line();
    assert!(line.trim_end().ends_with("1 tokens, from-me of ops"), "{line}");
}

#[test]
fn metrics_can_need_a_key() {
    let server = Server::start(&["--api-key", "sk-own", "--protect-metrics"]);
    assert_eq!(server.get("/metrics").0, 401);
    let with_key = server.exchange("GET", "/metrics", &[("x-api-key", "sk-own")], "");
    assert_eq!(with_key.status, 200);
    assert_eq!(server.get("/health").0, 200);
}

/// The client waits for `100 Continue`, which must not come.
#[test]
fn a_wrong_key_is_refused_before_the_body_is_read() {
    let server = Server::start(&["--api-key", "sk-own"]);
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    let limit = Some(Duration::from_secs(30));
    connection.set_read_timeout(limit).expect("a timeout can be set");
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\
         Expect: 100-continue\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).expect("sent");
    assert_eq!(Response::read(&mut connection).status, 401);
}

#[test]
fn a_file_of_keys_is_read_again_on_sighup() {
    let first = "[[keys]]\nname = \"a\"\nkey = \"sk-first\"\n";
    let file = KeyFile::new("reload", first);
    let mut server = Server::start(&["--api-keys", file.path()]);
    let long = json!({ "prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": true });
    let headers = [("x-api-key", "sk-first")];
    let address = server.address;
    let mut stream =
        crate::common::send_with(address, "POST", COMPLETIONS, &headers, &long.to_string());
    file.write(&first.replace("key =", "kee ="));
    server.signal("-HUP");
    let line = server.line();
    assert!(line.contains("line 3: unknown field `kee`"), "{line}");
    assert_eq!(complete(&server, "sk-first", &short()).status, 200);
    file.write(&first.replace("first", "second"));
    server.signal("-HUP");
    assert!(server.line().starts_with("SIGHUP: 1 API keys"));
    assert_eq!(complete(&server, "sk-first", &short()).status, 401);
    assert_eq!(complete(&server, "sk-second", &short()).status, 200);
    let whole = Response::read(&mut stream);
    assert!(whole.status == 200 && whole.body.ends_with("data: [DONE]\n\n"), "{}", whole.body);
}

#[test]
fn a_key_goes_before_others_only_if_its_file_allows_it() {
    let text = "[[keys]]\nname = \"a\"\nkey = \"sk-a\"\n\
                [[keys]]\nname = \"b\"\nkey = \"sk-b\"\nleast_priority = -3\n\
                [[keys]]\nname = \"c\"\nkey = \"sk-c\"\nleast_priority = 5\n";
    let file = KeyFile::new("priorities", text);
    let server = Server::start_in(&["--api-keys", file.path()], &[("TRAIL_API_KEY", "sk-own")]);
    let ask = |key: &str, priority: i32| {
        let body = json!({ "prompt": "a", "max_tokens": 1, "priority": priority });
        complete(&server, key, &body.to_string()).status
    };
    assert_eq!([ask("sk-a", 0), ask("sk-a", 9), ask("sk-a", -1)], [200, 200, 400]);
    assert_eq!([ask("sk-c", 5), ask("sk-c", 0)], [200, 400]);
    let plain = complete(&server, "sk-c", &short());
    assert_eq!(plain.status, 200, "a client that knows no priority has the key's: {}", plain.body);
    assert_eq!([ask("sk-b", -3), ask("sk-b", -4), ask("sk-own", -127)], [200, 400, 200]);
}

#[test]
fn requests_over_a_limit_learn_when_to_come_back() {
    let text = "[[keys]]\nname = \"a\"\nkey = \"sk-a\"\nrequests_per_minute = 2\n\
                [[keys]]\nname = \"b\"\nkey = \"sk-b\"\ntokens_per_minute = 10\n\
                [[keys]]\nname = \"c\"\nkey = \"sk-c\"\n";
    let file = KeyFile::new("limits", text);
    let server = Server::start(&["--api-keys", file.path()]);
    let start = Instant::now();
    let answers: Vec<_> = (0..3).map(|_| complete(&server, "sk-a", &short())).collect();
    assert!(start.elapsed() < Duration::from_secs(25), "a request has come back meanwhile");
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 429]);
    assert_eq!(answers[0].header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(answers[0].header("x-ratelimit-remaining-requests"), Some("1"));
    assert_eq!(answers[0].header("x-ratelimit-limit-tokens"), None);
    let refused = &answers[2];
    let wait: u64 =
        refused.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!((1..=30).contains(&wait), "{wait}");
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    // Requests without a body do not count.
    let list = server.exchange("GET", "/v1/models", &[("x-api-key", "sk-a")], "");
    assert_eq!(list.status, 200);
    let long = json!({ "prompt": "a", "max_tokens": 40, "ignore_eos": true }).to_string();
    assert_eq!(complete(&server, "sk-b", &long).status, 200);
    let refused = complete(&server, "sk-b", &short());
    assert_eq!(refused.status, 429, "41 tokens and more were used");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("10 tokens a minute"), "{message}");
    assert!((0..5).all(|_| complete(&server, "sk-c", &short()).status == 200));
}

#[test]
fn options_that_do_not_fit_are_refused() {
    for (options, says) in [
        (&["--prefix-cache", "per-key"][..], "needs keys"),
        (&["--no-prefix-cache", "--prefix-cache", "on"], "leave one of the two"),
        (&["--api-key", "two words"], "no spaces"),
        (&["--api-keys", "/nowhere.toml"], "cannot read /nowhere.toml"),
    ] {
        let output = trail_rt(&[&["serve", "--port", "0"], options].concat());
        assert_refused(&output, 2, says);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("two words"));
    }
}

#[test]
fn keys_can_have_their_own_prefix_cache() {
    let text = "[[keys]]\nname = \"a\"\nkey = \"sk-a\"\n[[keys]]\nname = \"b\"\nkey = \"sk-b\"\n";
    let file = KeyFile::new("salt", text);
    let prompt: Vec<u32> = (0..60).map(|at| 40 + at % 20).collect();
    let body = json!({ "prompt": prompt, "max_tokens": 1 });
    let cached = |server: &Server, key: &str, body: &serde_json::Value| {
        let answer = complete(server, key, &body.to_string()).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    let shared = Server::start(&["--api-keys", file.path()]);
    assert_eq!((cached(&shared, "sk-a", &body), cached(&shared, "sk-b", &body)), (0, 48));
    let server = Server::start(&["--api-keys", file.path(), "--prefix-cache", "per-key"]);
    assert_eq!((cached(&server, "sk-a", &body), cached(&server, "sk-b", &body)), (0, 0));
    assert_eq!((cached(&server, "sk-a", &body), cached(&server, "sk-b", &body)), (48, 48));
    let mut salted = body;
    salted["cache_salt"] = "s".into();
    assert_eq!((cached(&server, "sk-a", &salted), cached(&server, "sk-b", &salted)), (0, 0));
    assert_eq!(cached(&server, "sk-a", &salted), 48);
}
