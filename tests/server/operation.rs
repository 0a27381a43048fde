//! Options for those who run a server: names, the access log, metrics.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::Server;
use serde_json::json;

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn the_model_has_the_name_that_was_given() {
    let server = Server::start(&["--served-model-name", "my/model"]);
    let (_, list) = server.request("GET", "/v1/models", "");
    assert_eq!(list["data"][0]["id"], "my/model");
    assert_eq!(server.request("GET", "/v1/models/my/model", "").0, 200);
    let body = json!({ "model": "my/model", "prompt": "a", "max_tokens": 1 });
    assert_eq!(server.post(COMPLETIONS, &body)["model"], "my/model");
    let other = json!({ "model": "demo", "prompt": "a", "max_tokens": 1 }).to_string();
    assert_eq!(server.request("POST", COMPLETIONS, &other).0, 404);
}

/// The first predictions that reach the scheduler, by the decision log.
#[test]
fn predictor_hint_takes_the_clients_estimate_as_first_prediction() {
    let log = std::env::temp_dir().join(format!("trail-hint-{}.jsonl", std::process::id()));
    let path = log.to_str().expect("UTF-8");
    let predictions = |options: &[&str]| -> Vec<serde_json::Value> {
        let mut server = Server::start(&[options, &["--record", path]].concat());
        for hint in [json!({ "osl": 33 }), json!({ "osl": null, "priority": 3 })] {
            let nvext = json!({ "agent_hints": hint });
            server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 64, "nvext": nvext }));
        }
        server.terminate();
        server.end();
        let text = std::fs::read_to_string(&log).expect("a log");
        std::fs::remove_file(&log).expect("the test's own log");
        let events = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let events: Vec<serde_json::Value> = events.collect();
        let submitted = events.iter().filter_map(|event| event.get("submit"));
        submitted.map(|request| request["initial_prediction"].clone()).collect()
    };
    let hinted = predictions(&["--length-predictor", "hint", "--policy", "sjf"]);
    assert_eq!(hinted[0], 33.0);
    // Without an estimate the model's own predictor answers, as without the option.
    let plain = predictions(&["--policy", "sjf"]);
    assert!(plain[0] == plain[1] && plain[0] != 33.0 && hinted[1] == plain[1], "{plain:?}");
    let constant = predictions(&["--length-predictor", "constant:50", "--policy", "sjf"]);
    assert_eq!(constant, [50.0, 50.0]);
    let by_probe = predictions(&["--length-predictor", "prompt-probe", "--policy", "sjf"]);
    assert!(by_probe.iter().all(serde_json::Value::is_null), "{by_probe:?}");
}

#[test]
fn an_estimate_that_is_no_number_is_refused_where_it_is_read() {
    for (option, status) in [("prompt-length", 200), ("hint", 400)] {
        let server = Server::start(&["--length-predictor", option]);
        for nvext in [json!(5), json!({ "agent_hints": [] })] {
            server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1, "nvext": nvext }));
        }
        for osl in [json!(-1), json!(12.5), json!("33"), json!(1u64 << 32)] {
            let nvext = json!({ "agent_hints": { "osl": osl } });
            let body = json!({ "prompt": "a", "max_tokens": 1, "nvext": nvext });
            let (found, answer) = server.request("POST", COMPLETIONS, &body.to_string());
            assert_eq!(found, status, "{answer}");
            let field = answer["error"]["param"].as_str();
            assert_eq!(field.is_some_and(|of| of == "nvext.agent_hints.osl"), status == 400);
        }
    }
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let mut server = Server::start(&["--verbose"]);
    let body = json!({ "prompt": "a", "max_tokens": 5, "ignore_eos": true, "n": 2 });
    server.post(COMPLETIONS, &body);
    server.stream(COMPLETIONS, &body);
    server.request("POST", COMPLETIONS, "{");
    server.request("GET", "/nowhere", "");
    for (head, tokens) in [
        ("POST /v1/completions 200 ", 10),
        ("POST /v1/completions 200 ", 10),
        ("POST /v1/completions 400 ", 0),
        ("GET /nowhere 404 ", 0),
    ] {
        let line = server.line();
        let rest = line.strip_prefix(head).unwrap_or_else(|| panic!("{head} is not in {line}"));
        let (ms, rest) = rest.split_once(" ms ").expect("a duration");
        assert!(ms.parse::<f64>().is_ok(), "{line}");
        assert!(rest.starts_with(&format!("{tokens} tokens, ")), "{line}");
    }
}

/// The time to the first token includes that of the request's own way, from its head on.
#[test]
fn the_first_token_is_timed_from_the_head_of_the_request() {
    let server = Server::start(&[]);
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    let length = body.len();
    let head = format!("POST {COMPLETIONS} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(300));
    connection.write_all(body.as_bytes()).expect("sent");
    server.wait_for("trail_time_to_first_token_seconds_count", 1.0);
    let seconds = server.metric("trail_time_to_first_token_seconds_sum");
    assert!(seconds > 0.25, "{seconds} s");
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    for (length, says) in [("99999", "--max-model-len"), ("1", "--max-model-len")] {
        let output =
            crate::common::trail_rt(&["--max-model-len", length, "generate", "--prompt", "a"]);
        crate::common::assert_refused(&output, 2, says);
    }
    let arguments =
        ["--max-model-len", "40", "generate", "--prompt", "a", "--seed", "-7", "--ignore-eos"];
    assert!(
        crate::common::trail_rt(&arguments).status.success(),
        "the answer ends with the context"
    );
}

/// Names in the dashboard and the alert rules of deploy/: a query for one that is gone is silent.
#[test]
fn dashboards_and_alerts_ask_for_metrics_that_exist() {
    let server = Server::start(&[]);
    server.post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 1 }));
    let (_, text) = server.get("/metrics");
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    for file in ["grafana/trail-rt.json", "prometheus/trail-rt.rules.yml"] {
        let queries = std::fs::read_to_string(deploy.join(file)).expect("a file");
        let is_name = |c: char| c.is_ascii_lowercase() || "_:".contains(c);
        let words = queries.split(|c: char| !is_name(c));
        let names = words.filter(|word| word.starts_with("trail_") || word.starts_with("trail:"));
        let mut count = 0;
        for name in names {
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(text.contains(&format!("# TYPE {name} ")), "{file}: there is no {name}");
            count += 1;
        }
        // Labels but those of Prometheus: `name=` within braces, and of `by (name)`.
        let in_braces = queries.split(['{', ',', ' ']).filter_map(|part| part.split_once('='));
        let in_braces = in_braces.map(|(name, _)| name.trim_end_matches('!'));
        let by = queries
            .split(" by (")
            .skip(1)
            .flat_map(|part| part.split(')').next().unwrap_or_default().split(',').map(str::trim));
        let is_label = |name: &&str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        };
        let known = ["job", "instance", "le"];
        for label in in_braces.chain(by).filter(is_label).filter(|name| !known.contains(name)) {
            let used =
                ["{", ","].iter().any(|before| text.contains(&format!("{before}{label}=\"")));
            assert!(used, "{file}: no metric has the label {label}");
        }
        assert!(count > 9, "{file}: {count} names");
    }
}
