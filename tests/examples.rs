//! Runs the examples, and checks what they print.

#[path = "../examples/08_activations.rs"]
#[allow(unreachable_pub, dead_code)]
mod activations;
#[path = "../examples/01_embed.rs"]
#[allow(unreachable_pub, dead_code)]
mod embed;
#[path = "../examples/06_other_engine.rs"]
#[allow(unreachable_pub, dead_code)]
mod other_engine;
#[path = "../examples/04_policy.rs"]
#[allow(unreachable_pub, dead_code)]
mod policy;
#[path = "../examples/05_predictor.rs"]
#[allow(unreachable_pub, dead_code)]
mod predictor;
#[path = "../examples/10_router.rs"]
#[allow(unreachable_pub, dead_code)]
mod router;
#[path = "../examples/03_step.rs"]
#[allow(unreachable_pub, dead_code)]
mod step;
#[path = "../examples/02_stream.rs"]
#[allow(unreachable_pub, dead_code)]
mod stream;
#[path = "../examples/09_tap.rs"]
#[allow(unreachable_pub, dead_code)]
mod tap;
#[path = "../examples/07_trace.rs"]
#[allow(unreachable_pub, dead_code)]
mod trace;

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// The lines that `run` prints.
fn printed(run: impl FnOnce(&mut dyn Write) -> Result<(), Box<dyn Error>>) -> Vec<String> {
    let mut out = Vec::new();
    run(&mut out).expect("the example runs");
    let text = String::from_utf8(out).expect("text");
    text.lines().map(String::from).collect()
}

/// The number that follows `label` in `line`.
fn number_after(line: &str, label: &str) -> f64 {
    let (_, rest) = line.split_once(label).unwrap_or_else(|| panic!("{label} in {line}"));
    let number = rest.split_whitespace().next().expect("a number").trim_end_matches(',');
    number.parse().unwrap_or_else(|_| panic!("{number} in {line}"))
}

#[test]
fn example_1_answers_and_predicts_the_length() {
    let lines = printed(|out| embed::run("Tell me a story about a cat.", out));
    let (last, answer) = lines.split_last().expect("lines");
    assert!(answer.join(" ").ends_with("[stop]") || answer.join(" ").ends_with("[length]"));
    assert!(number_after(last, "") > 0.0, "{last}");
    assert!(number_after(last, "tokens; ") > 0.0, "{last}");
}

#[test]
fn example_2_streams_the_same_answers_under_two_runtimes() {
    let lines = printed(stream::run);
    let of = |runtime: &str| -> Vec<&str> {
        lines.iter().filter_map(|line| line.strip_prefix(runtime)).collect()
    };
    assert_eq!(of("tokio: "), of("smol: "));
    assert!(
        of("smol: ").len() == 2 && lines.iter().all(|line| !line.ends_with("-> ")),
        "{lines:?}"
    );
}

#[test]
fn example_3_pauses_the_long_answer_and_repeats_to_the_bit() {
    let lines = printed(step::run);
    let at = |end: &str| {
        let found = lines.iter().position(|line| line.ends_with(end));
        found.unwrap_or_else(|| panic!("{end}: {lines:#?}"))
    };
    let ends = |id: &str| lines.iter().position(|line| line.contains(&format!(" {id}: ")));
    assert!(at("0 is paused") < ends("1").unwrap() && ends("1") < ends("0"), "{lines:#?}");
    assert_eq!(lines, printed(step::run));
}

#[test]
fn example_4_compares_three_policies_and_its_own() {
    let lines = printed(policy::run);
    let mean = |policy: &str| {
        let row = lines.iter().find(|line| line.starts_with(policy)).expect(policy);
        row.split_whitespace().nth(1).expect("a mean").parse::<f64>().expect("a number")
    };
    assert!(mean("oracle") < mean("trail") && mean("trail") < mean("fcfs"), "{lines:#?}");
    assert!(mean("shortest-prompt") > 0.0 && lines[4].trim().ends_with(" 0"), "{lines:#?}");
}

#[test]
fn example_5_predicts_what_it_has_learned() {
    let lines = printed(predictor::run);
    assert_eq!(
        lines,
        [
            "\"List: a b c\": not seen before, 8 tokens",
            "\"Once upon\": not seen before, 40 tokens",
            "\"List: d\": 8 predicted, 8 tokens",
            "\"Once upon\": 9 predicted, 9 tokens",
        ]
    );
}

/// The example compares each answer with that of the toy alone.
#[test]
fn example_6_schedules_another_engine() {
    let lines = printed(other_engine::run);
    let mean = |line: &String| number_after(line, "mean latency ");
    assert!(mean(&lines[1]) < 0.8 * mean(&lines[0]), "{lines:#?}");
    assert!(number_after(&lines[1], "s, ") > 0.0, "blocks run out, or nothing is shown");
}

#[test]
fn example_7_simulates_a_trace() {
    let lines = printed(|out| trace::run(&trace::burst(), out));
    assert_eq!(lines[0], "900 requests");
    let means: Vec<f64> = lines[1..5].iter().map(|line| number_after(line, "latency ")).collect();
    assert!(means[2] < means[1] && means[1] < means[0], "{lines:#?}");
    let least = means.iter().copied().fold(f64::MAX, f64::min);
    assert!(number_after(&lines[5], "is below ") <= least, "{lines:#?}");
}

#[test]
fn example_8_predicts_from_activations_of_pytorch() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (file, probe) =
        (root.join("examples/activations.safetensors"), root.join("assets/demo/probe.safetensors"));
    let lines = printed(|out| activations::run(&file, &probe, out));
    let (last, predictions) = lines.split_last().expect("lines");
    assert_eq!(predictions.len(), 14, "{lines:#?}");
    assert!(number_after(last, "mean error ") < 80.0, "{lines:#?}");
    let [first, final_one] = [&predictions[0], &predictions[13]];
    let tokens = |line| number_after(line, "tokens: ");
    assert!(tokens(final_one) < tokens(first) / 2.0, "{lines:#?}");
    let other = activations::run(&probe, &probe, &mut Vec::new()).expect_err("no activations");
    assert!(other.to_string().contains("hidden"), "{other}");
}

#[test]
fn example_9_reads_the_layers_that_a_plain_pass_has() {
    let lines = printed(|out| tap::run("Once upon a time there was a cat.", out));
    assert_eq!(lines.len(), 7, "{lines:#?}");
    for line in &lines[1..] {
        assert!(number_after(line, "length ") > 1.0, "{line}");
        // Sums in another order, in f32.
        assert!(number_after(line, "difference ") < 1e-3, "{line}");
    }
}

/// The response to a request of HTTP/1.1 with `body`.
fn fetch(address: std::net::SocketAddr, head: &str, body: &str) -> String {
    let mut connection = TcpStream::connect(address).expect("the application listens");
    let length = body.len();
    write!(
        connection,
        "{head} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("a request is sent");
    let mut response = String::new();
    connection.read_to_string(&mut response).expect("a response");
    response
}

#[test]
fn example_10_serves_below_a_path_of_an_application() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (app, api) = router::application().expect("an application");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async { axum::serve(listener, app).await });
        let get = |head: &'static str, body: &'static str| {
            tokio::task::spawn_blocking(move || fetch(address, head, body))
        };
        assert!(get("GET /", "").await.unwrap().ends_with("a page of the application\n"));
        let body = r#"{"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": true}"#;
        let answer = get("POST /llm/v1/completions", body).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(r#""finish_reason":"length""#), "{answer}");
        assert!(get("GET /v1/models", "").await.unwrap().starts_with("HTTP/1.1 404"));
        let document = get("GET /llm/openapi.json", "").await.unwrap();
        assert!(document.contains(r#""url":"/llm""#), "{document}");
        assert_eq!(api.live(), 0);
        api.drain();
        assert!(get("POST /llm/v1/completions", body).await.unwrap().starts_with("HTTP/1.1 503"));
    });
}
