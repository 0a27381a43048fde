//! The order of the requests, and their slots.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{COMPLETIONS, answer, begin, prompts, proxy, queue};
use crate::common::http::{receive, send};
use crate::common::upstream::Upstream;
use crate::common::{Server, trail_rt};

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
