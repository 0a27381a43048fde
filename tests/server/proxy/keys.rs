//! API keys of the proxy, and of the server behind it.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::json;

use super::{COMPLETIONS, answer, proxy};
use crate::common::http::send_with;
use crate::common::upstream::Upstream;
use crate::common::{Response, Server, assert_refused, trail_rt};
use crate::keys::KeyFile;

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

/// A server that has the proxy's keys could use the proxy as its clients.
#[test]
fn keys_of_the_proxy_stay_there_and_the_server_gets_its_own() {
    let own = ("TRAIL_API_KEY", "sk-proxy");
    let to_server = ("TRAIL_UPSTREAM_KEY", "sk-server");
    let bearer = Some("Bearer sk-server");
    for (variables, options, clients, seen) in [
        (&[own][..], &[][..], "Bearer sk-proxy", [None, None]),
        (&[own, to_server], &[], "Bearer sk-proxy", [bearer, None]),
        (&[own], &["--upstream-key", "sk-server"], "Bearer sk-proxy", [bearer, None]),
        (&[to_server], &[], "Bearer sk-client", [bearer, None]),
        (&[], &[], "Bearer sk-client", [Some("Bearer sk-client"), Some("sk-client")]),
    ] {
        let upstream = Upstream::start(answer);
        let url = upstream.url();
        let options = [&["--upstream", &url, "--slots", "1", "--verbose"], options].concat();
        let mut server = Server::proxy_in(&options, variables);
        if variables.contains(&own) {
            assert_eq!(server.exchange("POST", COMPLETIONS, &[], "{}").status, 401);
            assert!(server.line().contains(" 401 "));
        }
        let key = clients.strip_prefix("Bearer ").expect("a key");
        let headers = [
            ("Authorization", clients),
            ("X-Api-Key", key),
            ("Proxy-Authorization", "Basic c2s6c2s="),
        ];
        for (method, path) in [("POST", COMPLETIONS), ("GET", "/v1/models")] {
            assert_eq!(server.exchange(method, path, &headers, "{}").status, 200);
            let request = upstream.seen().pop().expect("it was sent");
            let found = ["authorization", "x-api-key"].map(|name| request.header(name));
            assert_eq!(found, seen, "{variables:?} {path}");
            assert_eq!(request.header("proxy-authorization"), None);
            let line = server.line();
            assert!(line.contains(path) && !line.contains("sk-"), "{line}");
        }
    }
    let url = ["proxy", "--upstream", "http://127.0.0.1:9", "--slots", "1"];
    let refused = trail_rt(&[&url[..], &["--upstream-key", "sk secret"]].concat());
    assert!(!String::from_utf8_lossy(&refused.stderr).contains("secret"));
    assert_refused(&refused, 2, "--upstream-key: a key has");
}

#[test]
fn tokens_count_against_a_key_s_limit_while_they_come_and_those_of_prompts_too() {
    let file = KeyFile::new(
        "proxy-limits",
        "[[keys]]\nname = \"a\"\nkey = \"sk-a\"\ntokens_per_minute = 100\n\
         [[keys]]\nname = \"b\"\nkey = \"sk-b\"\ntokens_per_minute = 100\n",
    );
    let upstream = Upstream::start(answer);
    let server = proxy(&upstream, &["--slots", "4", "--api-keys", file.path()]);
    let begin = |key: &str, body: serde_json::Value| {
        let header = [("X-Api-Key", key)];
        send_with(server.address, "POST", COMPLETIONS, &header, &body.to_string())
    };
    let status = |key: &str| Response::read(&mut begin(key, json!({ "prompt": "a 1" }))).status;
    assert_eq!([status("sk-a"), status("sk-b")], [200, 200]);
    let long = begin("sk-a", json!({ "prompt": format!("wait {} 1", "word ".repeat(200)) }));
    upstream.wait_for(3);
    assert_eq!([status("sk-a"), status("sk-b")], [429, 200]);
    let _endless = begin("sk-b", json!({ "prompt": "a 20000", "stream": true }));
    let start = std::time::Instant::now();
    while server.metric("trail_inter_token_seconds_count") < 200.0 {
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "no token comes");
    }
    assert_eq!(status("sk-b"), 429);
    upstream.flags.released.store(true, SeqCst);
    drop(long);
}
