//! Live requests: states, reasons, estimates, cancellation, time limits, the page and its stream.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Server, http, trail_rt};

const COMPLETIONS: &str = "/v1/completions";

/// Headers of a request that names itself, with a key.
fn headers<'a>(id: &'a str, key: &'a str) -> [(&'a str, &'a str); 2] {
    [("X-Request-Id", id), ("X-Api-Key", key)]
}

/// A long answer, as a stream.
fn long() -> Value {
    json!({ "prompt": "One two", "max_tokens": 700, "ignore_eos": true, "stream": true })
}

/// Begins `count` long answers, named `prefix` and a number.
fn begin(server: &Server, prefix: &str, key: &str, count: usize) -> Vec<TcpStream> {
    let body = long().to_string();
    let send = |at: usize| {
        let id = format!("{prefix}{at}");
        http::send_with(server.address, "POST", COMPLETIONS, &headers(&id, key), &body)
    };
    (0..count).map(send).collect()
}

/// The live requests that `key` sees, once `is_enough` says so.
fn requests(server: &Server, key: &str, is_enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let begin = Instant::now();
    loop {
        let answer = server.exchange("GET", "/v1/requests", &[("X-Api-Key", key)], "");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let data = answer.json()["data"].as_array().expect("a list").clone();
        if is_enough(&data) {
            return data;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{data:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn live_requests_are_listed_with_reasons_and_estimates_and_can_be_cancelled() {
    let options = ["--max-running", "2", "--policy", "fcfs"];
    let server = Server::start(&options);
    let mut streams = begin(&server, "long-", "", 6);
    let is_estimated = |of: &Value| !of["choices"][0]["eta_ms"].is_null();
    let is_enough = |data: &[Value]| data.len() == 6 && data.iter().all(is_estimated);
    let live = requests(&server, "", is_enough);
    for (at, request) in live.iter().enumerate() {
        let choice = &request["choices"][0];
        let waits = at >= 2;
        assert_eq!(request["model"], "demo");
        assert_eq!(choice["queue_position"], at.saturating_sub(1), "{request:#}");
        assert_eq!(choice["state"] == "waiting", waits, "{request:#}");
        assert_eq!(choice["reason"].is_string(), waits, "{request:#}");
        let [low, high] = [0, 1].map(|end| choice["eta_interval_ms"][end].as_u64());
        assert!(low <= choice["eta_ms"].as_u64() && choice["eta_ms"].as_u64() <= high);
    }
    let reason = live[5]["choices"][0]["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("the batch is full (2 requests): 3 are ranked before"), "{reason}");
    let last = live[5]["id"].as_str().expect("an id");
    let path = format!("/v1/requests/{last}");
    assert_eq!(server.request("GET", &path, "").1["id"], last);
    assert_eq!(server.request("DELETE", &path, "").1["cancelled"], true);
    let number: usize =
        last.strip_prefix("long-").and_then(|at| at.parse().ok()).expect("a number");
    let text = http::Response::read(&mut streams.remove(number)).body;
    assert!(text.contains("request_cancelled"), "{text}");
    requests(&server, "", |data| data.iter().all(|of| of["id"] != last));
    assert_eq!(server.request("DELETE", &path, "").0, 404);
    drop(streams);
    requests(&server, "", <[Value]>::is_empty);
}

/// vLLM's field: lower goes first, and within one priority the policy decides.
#[test]
fn requests_of_a_lower_priority_precede_the_others() {
    let server = Server::start(&["--max-running", "1", "--policy", "fcfs"]);
    let mut streams = begin(&server, "runs-", "", 1);
    let is_running =
        |data: &[Value]| data.len() == 1 && data[0]["choices"][0]["queue_position"] == 0;
    requests(&server, "", is_running);
    for (id, priority) in [("a", 0), ("b", 5), ("c", -1), ("d", 0), ("e", -1)] {
        let mut body = long();
        body["priority"] = priority.into();
        let headers = headers(id, "");
        let body = body.to_string();
        streams.push(http::send_with(server.address, "POST", COMPLETIONS, &headers, &body));
        // The order of arrival decides within a priority.
        std::thread::sleep(Duration::from_millis(10));
    }
    let live = requests(&server, "", |data| data.len() == 6);
    let ids: Vec<_> = live.iter().map(|of| of["id"].as_str().expect("an id")).collect();
    assert_eq!(ids, ["runs-0", "c", "e", "a", "d", "b"]);
    assert_eq!(live[1]["choices"][0]["priority"], -1);
    let refused = server.request("POST", COMPLETIONS, "{\"prompt\": \"a\", \"priority\": 128}");
    assert_eq!((refused.0, &refused.1["error"]["param"]), (400, &json!("priority")));
}

#[test]
fn a_key_sees_its_own_requests_alone() {
    let file = std::env::temp_dir().join(format!("trail-live-{}.toml", std::process::id()));
    let keys =
        "[[keys]]\nname = \"one\"\nkey = \"sk-one\"\n[[keys]]\nname = \"two\"\nkey = \"sk-two\"\n";
    std::fs::write(&file, keys).expect("written");
    let options = ["--max-running", "1", "--api-keys", file.to_str().expect("UTF-8")];
    let server = Server::start_in(&options, &[("TRAIL_API_KEY", "sk-own")]);
    let streams = [begin(&server, "one-", "sk-one", 2), begin(&server, "two-", "sk-two", 2)];
    requests(&server, "sk-own", |data| data.len() == 4);
    let seen = requests(&server, "sk-one", |data| data.len() == 2);
    assert!(seen.iter().all(|of| of["id"].as_str().is_some_and(|id| id.starts_with("one-"))));
    let cancel = |key| server.exchange("DELETE", "/v1/requests/two-0", &headers("x", key), "");
    assert_eq!(cancel("sk-one").status, 404);
    assert_eq!(cancel("sk-two").status, 200);
    let frames = frames(&server, "sk-one", 2);
    let ids: Vec<_> = frames[1]["requests"].as_array().expect("rows").iter().collect();
    assert!(ids.iter().all(|of| of["id"].is_null() || of["id"] == "one-0" || of["id"] == "one-1"));
    assert!(ids.iter().any(|of| of["id"].is_null()), "{ids:?}");
    drop(streams);
    let _ = std::fs::remove_file(file);
}

/// The first `count` events of the live stream, the history first.
fn frames(server: &Server, key: &str, count: usize) -> Vec<Value> {
    let headers = [("X-Api-Key", key)];
    let stream = http::send_with(server.address, "GET", "/v1/trail/live", &headers, "");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let data = lines.filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()));
    data.take(count).map(|text| serde_json::from_str(&text).expect("JSON")).collect()
}

#[test]
fn the_stream_shows_every_request_and_chunks_their_progress() {
    let server = Server::start(&["--max-running", "4"]);
    let idle = frames(&server, "", 3);
    assert_eq!((&idle[0]["every_s"], &idle[1]["requests"]), (&json!(2.0), &json!([])));
    assert!(idle[1..].iter().all(|of| of["max_running"] == 4), "{idle:#?}");
    assert!(idle[1]["t"].as_f64() < idle[2]["t"].as_f64(), "time goes on: {idle:#?}");
    let mut streams = begin(&server, "of-", "", 8);
    requests(&server, "", |data| data.len() == 8);
    let shown = frames(&server, "", 2);
    let rows = shown[1]["requests"].as_array().expect("rows");
    let running = rows.iter().filter(|row| row["place"] == 0).count();
    assert_eq!((rows.len(), &shown[1]["running"]), (8, &json!(running)));
    assert!(rows.iter().all(|row| row["id"].as_str().is_some_and(|id| id.starts_with("of-"))));
    let is_behind = |pair: &[Value]| pair[0]["place"].as_u64() <= pair[1]["place"].as_u64();
    assert!(rows.windows(2).all(is_behind), "the batch comes first: {rows:#?}");
    rows.iter().for_each(check_row);
    let first = http::Response::read(&mut streams.remove(0));
    assert!(!first.body.contains("eta_ms"), "progress was not requested");
    let mut body = long();
    body["trail"] = json!({ "progress": true });
    let answer = server.exchange("POST", COMPLETIONS, &[], &body.to_string());
    assert!(answer.header("x-trail-eta-ms").is_some_and(|ms| ms.parse::<u64>().is_ok()));
    assert!(answer.header("x-trail-queue-position").is_some());
    let chunks = answer.body.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks = chunks.map(|text| serde_json::from_str(&format!("{{{text}")).expect("JSON"));
    let chunks: Vec<Value> = chunks.filter(|of: &Value| of["trail"].is_object()).collect();
    // On a busy machine a chunk has many tokens.
    assert!(chunks.len() > 10, "{}", &answer.body[..2000.min(answer.body.len())]);
    for chunk in &chunks {
        let trail = &chunk["trail"];
        check_interval(&trail["remaining_interval"], &trail["remaining_tokens"]);
        check_interval(&trail["eta_interval_ms"], &trail["eta_ms"]);
        let remaining = trail["remaining_tokens"].as_f64();
        match chunk["choices"][0]["finish_reason"].is_null() {
            true => assert!(remaining >= Some(1.0), "it has not ended: {chunk}"),
            false => assert_eq!(remaining, Some(0.0), "it has ended: {chunk}"),
        }
    }
}

/// Before a step was timed, lengths are expected and times are not.
#[test]
fn the_first_answer_of_a_server_reports_the_tokens_left() {
    let server = Server::start(&[]);
    let mut body = long();
    (body["trail"], body["max_tokens"]) = (json!({ "progress": true }), 5.into());
    let answer = server.exchange("POST", COMPLETIONS, &[], &body.to_string());
    let chunk = answer.body.lines().find_map(|line| line.strip_prefix("data: ")).expect("a chunk");
    let chunk: Value = serde_json::from_str(chunk).expect("JSON");
    check_interval(&chunk["trail"]["remaining_interval"], &chunk["trail"]["remaining_tokens"]);
}

/// `at` is within `interval`, and both are there.
fn check_interval(interval: &Value, at: &Value) {
    let [low, high] = [0, 1].map(|end| interval[end].as_f64().expect("an end"));
    let at = at.as_f64().expect("a number");
    assert!(low <= at && at <= high, "{at} in {interval}");
}

/// All estimates of a row of the stream are there, and agree.
fn check_row(row: &Value) {
    check_interval(&row["interval"], &row["remaining"]);
    let Some(last) = row["last_ms"].as_array() else { return };
    for (end, last) in last.iter().enumerate() {
        let first = row["first_ms"].get(end).and_then(Value::as_u64);
        assert!(first <= last.as_u64(), "the first token comes before the last: {row:#}");
    }
}

/// Neither the page nor an admin's question is a reason to load a model.
#[test]
fn a_model_that_is_not_loaded_has_no_policy_and_is_not_loaded_for_it() {
    let server = Server::start(&["--idle-unload", "1"]);
    let state = || server.request("GET", "/v1/models", "").1["data"][0]["state"].clone();
    let begin = Instant::now();
    while state() != "unloaded" {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", state());
        std::thread::sleep(Duration::from_millis(50));
    }
    let change = json!({ "policy": "fcfs" }).to_string();
    for (method, body) in [("GET", ""), ("POST", &*change), ("DELETE", "")] {
        let refused = server.exchange(method, "/v1/trail/policy", &[], body);
        let code = &refused.json()["error"]["code"];
        assert_eq!((refused.status, code), (409, &json!("model_not_loaded")), "{method}");
    }
    assert_eq!(state(), "unloaded");
}

#[test]
fn time_limits_that_cannot_be_met_are_refused_and_missed_ones_given_up() {
    let server = Server::start(&["--max-running", "1", "--policy", "fcfs"]);
    let streams = begin(&server, "long-", "", 6);
    let is_estimated = |of: &Value| !of["choices"][0]["eta_ms"].is_null();
    requests(&server, "", |data| data.len() == 6 && data.iter().all(is_estimated));
    for (field, what) in [("deadline_ms", "the last token"), ("max_wait_ms", "the first token")] {
        let mut body = long();
        body[field] = 1.into();
        let refused = server.exchange("POST", COMPLETIONS, &[], &body.to_string());
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (429, &json!("deadline_unreachable")));
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().is_some_and(|text| text.starts_with(what)), "{error}");
        assert!(refused.header("retry-after").is_some_and(|s| s.parse::<u64>().is_ok()));
    }
    drop(streams);
    requests(&server, "", <[Value]>::is_empty);
    let mut body = long();
    body["deadline_ms"] = 3_600_000.into();
    let answer = server.exchange("POST", COMPLETIONS, &[], &body.to_string());
    assert!(answer.body.trim_end().ends_with("[DONE]"), "{}", answer.body);
}

#[test]
fn a_limit_that_is_missed_before_anything_was_timed_ends_the_answer() {
    let server = Server::start(&[]);
    let mut body = long();
    body["deadline_ms"] = 20.into();
    let answer = server.exchange("POST", COMPLETIONS, &[], &body.to_string());
    assert!(answer.body.contains("deadline_exceeded"), "{}", answer.body);
    server.wait_for("trail_requests_total{finish_reason=\"deadline\"}", 1.0);
}

#[test]
fn browsers_get_a_page_that_loads_nothing_else_and_others_a_list() {
    let server = Server::start(&[]);
    let page = server.exchange("GET", "/", &[("Accept", "text/html,*/*;q=0.8")], "");
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(page.body.starts_with("<!doctype html>") && page.body.contains("<script>"));
    let (status, list) = server.get("/");
    assert!(status == 200 && list.contains("/v1/requests"), "{list}");
    assert_eq!(list.matches("/v1/trail/policy").count(), 1, "{list}");
}

/// The decisions that the owner of a preempted request reads are those of the decision log.
#[test]
fn decisions_of_a_request_are_those_of_the_log() {
    let path = std::env::temp_dir().join(format!("trail-decisions-{}.jsonl", std::process::id()));
    let log = path.to_str().expect("UTF-8");
    let options = ["--max-running", "1", "--policy", "rr:8", "--record", log];
    let mut server = Server::start(&options);
    let streams = begin(&server, "of-", "", 3);
    let is_preempted = |of: &&Value| of["choices"][0]["preemptions"].as_u64() > Some(1);
    let waits = |of: &&Value| of["choices"][0]["state"] != "running";
    let live = requests(&server, "", |data| data.iter().filter(is_preempted).any(|of| waits(&of)));
    let shown = live.iter().filter(is_preempted).find(waits).expect("one that waits");
    let choice = &shown["choices"][0];
    let reason = choice["reason"].as_str().expect("it waits");
    assert!(reason.starts_with("preempted at step "), "{reason}");
    drop(streams);
    server.terminate();
    server.end();
    let decisions = choice["decisions"].as_array().expect("a list");
    let last = decisions.last().expect("it was preempted")["step"].as_u64();
    let text = std::fs::read_to_string(&path).expect("a log");
    let events = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let logged: Vec<Value> = events.map(|mut event: Value| event["decision"].take()).collect();
    let is_of = |of: &&Value| of["request"] == decisions[0]["request"];
    let logged: Vec<&Value> =
        logged.iter().filter(is_of).filter(|of| of["step"].as_u64() <= last).collect();
    let kept = logged.len().saturating_sub(64);
    assert_eq!(logged[kept..], decisions.iter().collect::<Vec<_>>());
    let _ = std::fs::remove_file(path);
}

/// The policy changes under load: no answer does, the log replays, and users may not do it.
#[test]
fn an_admin_changes_the_policy_while_requests_run() {
    let path = std::env::temp_dir().join(format!("trail-policy-{}.jsonl", std::process::id()));
    let log = path.to_str().expect("UTF-8");
    let options = ["--max-running", "2", "--api-key", "sk-own", "--record", log];
    let mut server = Server::start(&options);
    let key = [("X-Api-Key", "sk-own")];
    let shown = server.exchange("GET", "/v1/trail/policy", &key, "").json();
    assert_eq!((&shown["name"], &shown["may_change"]), (&json!("trail"), &json!(true)));
    let choices: Vec<_> = shown["choices"].as_array().expect("a list").iter().collect();
    assert!(choices.iter().all(|of| of["name"] != "oracle") && choices.len() > 10, "{shown:#}");
    let mut body = long();
    (body["seed"], body["max_tokens"]) = (7.into(), 200.into());
    let answer = |body: &Value| {
        http::send_with(server.address, "POST", COMPLETIONS, &key, &body.to_string())
    };
    let text = |stream: TcpStream| {
        let body = http::Response::read(&mut { stream }).body;
        let chunks = body.lines().filter_map(|line| line.strip_prefix("data: {"));
        let text = |chunk: &str| {
            let chunk: Value = serde_json::from_str(&format!("{{{chunk}")).expect("JSON");
            chunk["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
        };
        chunks.map(text).collect::<String>()
    };
    let alone = text(answer(&body));
    let streams: Vec<_> = (0..8).map(|_| answer(&body)).collect();
    requests(&server, "sk-own", |data| data.len() > 5);
    let set =
        |change: Value| server.exchange("POST", "/v1/trail/policy", &key, &change.to_string());
    for change in [
        json!({ "policy": "fcfs" }),
        json!({ "policy": "trail", "c": 0.5, "tail_bound": 0.0 }),
        json!({ "policy": "rr-sjf" }),
    ] {
        let answer = set(change.clone());
        assert_eq!((answer.status, &answer.json()["name"]), (200, &change["policy"]), "{change}");
    }
    let shown = set(json!({ "policy": "trail", "tail_bound": 3.0 })).json();
    assert_eq!(shown["policy"], "trail:0.8, tail bound 3");
    let reset = |query: &str, key: &[(&str, &str)]| {
        server.exchange("DELETE", &format!("/v1/trail/policy{query}"), key, "")
    };
    assert_eq!((reset("?model=none", &key).status, reset("", &[]).status), (404, 401));
    assert_eq!(reset("?model=demo", &key).json()["policy"], "trail");
    for (change, field) in [
        (json!({ "policy": "oracle" }), "policy"),
        (json!({ "policy": "best" }), "policy"),
        (json!({ "policy": "trail", "c": 1.5 }), "c"),
        (json!({ "policy": "fcfs", "tail_bound": 1.0 }), "tail_bound"),
        (json!({ "policy": "trail", "tailbound": 1.0 }), "tailbound"),
    ] {
        let refused = set(change.clone());
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)));
    }
    assert!(streams.into_iter().all(|stream| text(stream) == alone));
    server.terminate();
    let (status, notices) = server.end();
    assert!(status.success());
    let says = "policy of model 'demo' was set to ";
    assert_eq!(notices.matches(says).count(), 5, "{notices}");
    let text = std::fs::read_to_string(&path).expect("a log");
    // Those between two steps are one.
    assert!((1..=5).contains(&text.matches("{\"policy\":{").count()), "{text}");
    let output = trail_rt(&["replay", log]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let _ = std::fs::remove_file(path);
}
