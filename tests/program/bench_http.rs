//! `trail-rt bench http`, against the server of this program.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::upstream::{Upstream, begin_events, chunk, object};
use crate::common::{Server, trail_rt};

#[test]
fn load_over_http_is_measured_and_policies_are_compared() {
    let server = Server::start(&["--max-running", "2", "--policy", "sjf", "--tail-bound", "3"]);
    let url = format!("http://{}", server.address);
    let load = ["--requests", "12", "--max-tokens", "12", "--rate", "100", "--rounds", "2"];
    let more = ["--compare", "fcfs,trail", "--slo", "e2e=100", "--json"];
    let output = trail_rt(&[&["bench", "http", "--url", &url][..], &load, &more].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    let policies: Vec<_> = runs.iter().map(|run| run["policy"].as_str().expect("named")).collect();
    assert_eq!(policies, ["fcfs", "trail", "fcfs", "trail"], "interleaved");
    for run in runs {
        assert_eq!((&run["failed"], &run["good_share"]), (&0.into(), &1.0.into()), "{run}");
        let [ttft, latency] = ["ttft_s", "latency_s"].map(|name| run[name]["mean"].as_f64());
        assert!(Some(0.0) < ttft && ttft < latency, "{run}");
        assert!(run["smooth_share"].as_f64().is_some_and(|of| (0.0..=1.0).contains(&of)), "{run}");
    }
    assert_eq!(report["ratios"][0]["over"], "fcfs");
    let rounds = &report["rounds"][1];
    assert_eq!((&rounds["policy"], &rounds["rounds"]), (&"trail".into(), &2.into()), "{rounds}");
    let [middle, low, high] = [0, 1, 2].map(|at| rounds["latency_p99_s"][at].as_f64());
    assert!(low <= middle && middle <= high && low > Some(0.0), "{rounds}");
    let shown = server.get("/v1/trail/policy").1;
    assert!(shown.contains("\"policy\":\"sjf, tail bound 3\""), "as at the start: {shown}");
    let picture = std::env::temp_dir().join(format!("trail-http-{}.svg", std::process::id()));
    let _ = std::fs::remove_file(&picture);
    let plot = picture.to_str().expect("UTF-8");
    let shares = ["--requests", "10", "--max-tokens", "6", "--rate-share", "0.5,1", "--plot", plot];
    let output = trail_rt(&[&["bench", "http", "--url", &url][..], &shares].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("capacity "), "{text}");
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.contains("10 requests to demo over HTTP"), "{drawn}");
    let _ = std::fs::remove_file(picture);
}

/// Lengths and times of a production trace, in Azure's form, scaled to a rate.
#[test]
fn requests_of_a_trace_are_sent_at_its_times() {
    let server = Server::start(&[]);
    let url = format!("http://{}", server.address);
    let file = std::env::temp_dir().join(format!("trail-http-{}.csv", std::process::id()));
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                2023-11-16 18:00:00.0,12,3\n2023-11-16 18:00:01.0,5,1\n2023-11-16 18:00:09.0,7,9\n";
    std::fs::write(&file, text).expect("written");
    let trace = file.to_str().expect("UTF-8");
    let options = ["--trace", trace, "--arrivals", "trace", "--rate", "10", "--max-tokens", "4"];
    let bench = ["bench", "http", "--url", &url, "--json"];
    let output = trail_rt(&[&bench[..], &options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &report["runs"][0];
    assert_eq!((&report["requests"], &run["failed"]), (&3.into(), &0.into()), "{report}");
    let none = trail_rt(&[&bench[..], &["--arrivals", "trace"]].concat());
    let errors = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(2) && errors.contains("--trace FILE"), "{errors}");
    let _ = std::fs::remove_file(file);
}

/// A client that sent its next request after an answer would never be answered here, and one with
/// a limit of connections neither (coordinated omission).
#[test]
fn requests_do_not_wait_for_a_server_that_stalls() {
    const REQUESTS: usize = 40;
    let server = Upstream::start(|seen, stream, flags| {
        if !seen.line.contains("completions") {
            return object(stream, "200 OK", r#"{"data":[{"id":"toy"}]}"#);
        }
        if !seen.body.contains(r#""temperature":0.25"#) {
            return object(stream, "400 Bad Request", "{}");
        }
        // The first one is sent before the run, alone.
        while (2..=REQUESTS).contains(&flags.seen_of("completions")) {
            thread::sleep(Duration::from_millis(1));
        }
        begin_events(stream)?;
        let text = r#"data: {"choices":[{"delta":{"content":"a"}}]}"#;
        chunk(stream, &format!("{text}\n\ndata: [DONE]\n\n"))?;
        chunk(stream, "")
    });
    let requests = REQUESTS.to_string();
    let load = ["--requests", &requests, "--rate", "100", "--timeout", "30", "--json"];
    let load = [&load[..], &["--temperature", "0.25"]].concat();
    let output = trail_rt(&[&["bench", "http", "--url", &server.url()][..], &load].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &report["runs"][0];
    assert_eq!(run["failed"], 0, "{run}");
    // All end with the last one: latencies differ by as much as the times of the requests.
    let latency = |of: &str| run["latency_s"][of].as_f64().expect("a number");
    assert!(latency("p99") - latency("p50") > 0.05, "{run}");
}

#[test]
fn a_server_that_is_not_there_is_one_line() {
    for (url, code) in [("http://127.0.0.1:1", 1), ("https://127.0.0.1", 2), ("nowhere", 2)] {
        let output = trail_rt(&["bench", "http", "--url", url, "--requests", "1"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{errors}");
    }
}
