//! Several models in one server: chosen by name, unloaded and loaded again under traffic.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Server, assert_refused, trail_rt};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_model";
const UNLOAD: &str = "/v1/unload_model";

/// The bundled model as `a`, and one of other answers, without a probe, as `b`: the same weights
/// with another base of rotations.
struct Models(PathBuf);

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo")
}

impl Models {
    fn new(name: &str) -> Models {
        let folder =
            std::env::temp_dir().join(format!("trail-models-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(demo().join(file), folder.join(file)).expect("copied");
        }
        let models = Models(folder);
        models.write_config();
        models
    }

    fn write_config(&self) {
        let text = fs::read_to_string(demo().join("config.json")).expect("read");
        let mut config: Value = serde_json::from_str(&text).expect("JSON");
        config["rope_theta"] = json!(3000.0);
        fs::write(self.0.join("config.json"), config.to_string()).expect("written");
    }

    /// The options that name them.
    fn options(&self) -> [String; 2] {
        [format!("--model=a={}", demo().display()), format!("--model=b={}", self.0.display())]
    }

    fn serve(&self, options: &[&str]) -> Server {
        let models = self.options();
        Server::start(&[&[&*models[0], &*models[1]], options].concat())
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn body(model: &str, at: usize) -> Value {
    json!({ "model": model, "prompt": format!("Once upon a time {at}"), "max_tokens": 24,
            "temperature": 0.8, "seed": at, "ignore_eos": true, "logprobs": 1 })
}

/// The answers of each model to [`body`] 0, 1, and so on, from a server that has it alone.
fn alone(models: &Models, count: usize) -> [Vec<Value>; 2] {
    models.options().map(|option| {
        let server = Server::start(&[&option]);
        let (_, list) = server.request("GET", "/v1/models", "");
        let name = list["data"][0]["id"].as_str().expect("a name").to_owned();
        (0..count).map(|at| server.post(COMPLETIONS, &body(&name, at))["choices"].take()).collect()
    })
}

fn name(at: usize) -> &'static str {
    ["a", "b"][at % 2]
}

fn states(server: &Server) -> Vec<Value> {
    let (_, list) = server.request("GET", "/v1/models", "");
    let cards = list["data"].as_array().expect("models");
    cards.iter().map(|card| card["state"].clone()).collect()
}

fn wait_for_states(server: &Server, state: &str) {
    let begin = Instant::now();
    while states(server).iter().any(|found| found != state) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", states(server));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends both models' requests at once, and compares the answers.
fn ask_all(server: &Server, expected: &[Vec<Value>; 2]) {
    let begun: Vec<_> = (0..2 * expected[0].len())
        .map(|at| server.begin(COMPLETIONS, &body(name(at), at / 2)))
        .collect();
    for (at, connection) in begun.into_iter().enumerate() {
        let (status, answer) = common::receive(connection);
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["model"], name(at));
        assert_eq!(answer["choices"], expected[at % 2][at / 2], "request {at}");
    }
}

fn message(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let (status, answer) = server.request("POST", path, &body.to_string());
    (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
}

/// Both under load: answers are those alone, by metrics, logs and names of their own.
#[test]
fn each_model_answers_as_alone() {
    let models = Models::new("alone");
    let expected = alone(&models, 12);
    assert_ne!(expected[0], expected[1]);
    let log = models.0.join("decisions.jsonl");
    let record = format!("--record={}", log.display());
    let mut server = models.serve(&["--model-share", "a=3", &record]);
    assert_eq!(states(&server), ["loaded", "loaded"]);
    ask_all(&server, &expected);
    let chat = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "model": "b", "messages": chat, "max_tokens": 2 })),
        ("/v1/messages", json!({ "model": "b", "messages": chat, "max_tokens": 2 })),
        ("/v1/responses", json!({ "model": "b", "input": "Hi", "max_output_tokens": 2 })),
    ] {
        assert_eq!(server.post(path, &body)["model"], "b", "{path}");
    }
    for model in ["a", "b"] {
        let tokens = server.post("/tokenize", &json!({ "model": model, "prompt": "Hi" }));
        assert_eq!(tokens["max_model_len"], 1024);
    }
    let (status, error) = message(&server, COMPLETIONS, &body("c", 0));
    assert!(status == 404 && error.contains("this server has 'a', 'b'"), "{error}");
    let (status, error) = message(&server, COMPLETIONS, &json!({ "prompt": "a" }));
    assert!(status == 400 && error.contains("name one of 'a', 'b'"), "{error}");
    let (status, error) = message(&server, "/v1/trail/policy", &json!({ "policy": "fcfs" }));
    assert!(status == 400 && error.contains("name one of 'a', 'b'"), "{error}");
    let ended = ["a", "b"]
        .map(|model| server.metric(&format!("trail_request_n_count{{model_name=\"{model}\"}}")));
    assert_eq!(ended, [12.0, 15.0]);
    let tokens = "vllm:generation_tokens_total{engine=\"0\",model_name=\"a\"}";
    assert_eq!(server.metric(tokens), 12.0 * 24.0);
    server.terminate();
    assert!(server.end().0.success());
    for (name, requests) in [("a", 12), ("b", 15)] {
        let text = fs::read_to_string(models.0.join(format!("decisions-{name}.jsonl")));
        let text = text.expect("a log of each model");
        assert_eq!(text.matches("\"submit\"").count(), requests, "{name}");
    }
    assert!(!log.exists());
}

#[test]
fn idle_models_are_unloaded_and_loaded_for_the_next_request() {
    let models = Models::new("idle");
    let expected = alone(&models, 4);
    let server = models.serve(&["--idle-unload", "1"]);
    for round in 1..=2 {
        wait_for_states(&server, "unloaded");
        assert_eq!(server.get("/ready").0, 200, "an unloaded model is ready");
        ask_all(&server, &expected);
        // Counters do not begin again.
        let generated = "trail_generated_tokens_total{model_name=\"b\"}";
        assert_eq!(server.metric(generated), f64::from(round) * 4.0 * 24.0);
    }
    // Of one model, with the name of its files.
    let server = Server::start(&["--idle-unload", "1"]);
    wait_for_states(&server, "unloaded");
    let (_, card) = server.request("GET", "/v1/models/demo", "");
    assert_eq!((&card["state"], &card["max_model_len"]), (&json!("unloaded"), &json!(1024)));
    let answer = server.post(COMPLETIONS, &body("demo", 0));
    assert_eq!(answer["choices"], expected[0][0]);
    assert_eq!(server.post(COMPLETIONS, &json!({ "prompt": "a" }))["model"], "demo");
}

/// Requests before, during and after each unload are answered, whole and as alone.
#[test]
fn unloads_under_traffic_lose_nothing() {
    let models = Models::new("traffic");
    let expected = alone(&models, 6);
    let server = models.serve(&[]);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let unloads = scope.spawn(|| {
            let mut unloads = 0;
            while !ended.load(Ordering::SeqCst) {
                let unload = json!({ "model": name(unloads) }).to_string();
                assert_eq!(server.request("POST", UNLOAD, &unload).0, 200);
                unloads += 1;
                thread::sleep(Duration::from_millis(30));
            }
            unloads
        });
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (server, expected) = (&server, &expected);
                scope.spawn(move || {
                    for at in 0..24 {
                        let (model, at) = ((client + at) % 2, at / 4);
                        let answer = server.post(COMPLETIONS, &body(name(model), at));
                        assert_eq!(answer["choices"], expected[model][at]);
                    }
                })
            })
            .collect();
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        ended.store(true, Ordering::SeqCst);
        assert!(clients.iter().all(Result::is_ok));
        assert!(unloads.join().expect("unloads") > 2);
    });
    let rejected = "trail_http_responses_total{code=\"503\"}";
    assert_eq!(server.metric_of(rejected), None);
}

/// By the endpoints: an unload waits for the stream that runs, a load that fails says why.
#[test]
fn models_are_loaded_and_unloaded_by_request() {
    let models = Models::new("admin");
    let mut server = models.serve(&[]);
    let b = json!({ "model": "b" });
    let mut long = body("b", 0);
    long["max_tokens"] = json!(200);
    let expected = server.post(COMPLETIONS, &long)["choices"][0]["text"].take();
    long["stream"] = json!(true);
    let running = server.begin(COMPLETIONS, &long);
    running.peek(&mut [0]).expect("the first byte of its response");
    let (status, text) = common::receive(server.begin(UNLOAD, &b));
    assert_eq!((status, &*text), (200, "Success: model 'b' was unloaded."));
    assert_eq!(states(&server), ["loaded", "unloaded"]);
    let pieces = common::pieces(&common::receive(running).1);
    let text = |piece: &Value| piece["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert_eq!(pieces.iter().map(text).collect::<String>(), expected, "the stream is whole");
    assert_eq!(server.line(), "model 'b' was unloaded\n");
    fs::remove_file(models.0.join("config.json")).expect("removed");
    let begun = [(); 3].map(|()| server.begin(COMPLETIONS, &body("b", 0)));
    for connection in begun {
        let (status, text) = common::receive(connection);
        assert!(status == 503 && text.contains("model 'b' could not be loaded: "), "{text}");
    }
    let (status, error) = message(&server, LOAD, &b);
    assert!(status == 503 && error.contains("config.json"), "{error}");
    assert_eq!(server.get("/health").0, 200, "the others are served");
    models.write_config();
    let (status, text) = common::receive(server.begin(LOAD, &b));
    assert_eq!((status, &*text), (200, "Success: model 'b' is loaded."));
    assert_eq!(states(&server), ["loaded", "loaded"]);
    server.post(COMPLETIONS, &body("b", 0));
    for path in [LOAD, UNLOAD] {
        assert_eq!(message(&server, path, &json!({ "model": "c" })).0, 404);
        let (status, error) = message(&server, path, &json!({}));
        assert!(status == 400 && error.contains("model"), "{error}");
    }
}

#[test]
fn the_key_of_the_operator_alone_changes_models() {
    let models = Models::new("keys");
    let keys = models.0.join("keys.toml");
    fs::write(&keys, "[[keys]]\nname = \"user\"\nkey = \"sk-user\"\n").expect("written");
    let options = ["--api-keys", keys.to_str().expect("UTF-8")];
    let server = Server::start_in(&options, &[("TRAIL_API_KEY", "sk-own")]);
    let unload = json!({ "model": "demo" }).to_string();
    let of = |key| server.exchange("POST", UNLOAD, &[("x-api-key", key)], &unload).status;
    assert_eq!([of("sk-none"), of("sk-user"), of("sk-own")], [401, 403, 200]);
}

#[test]
fn bad_models_are_refused_in_one_line() {
    let models = Models::new("bad");
    let [a, b] = models.options();
    let refused = |options: &[&str], code, says| {
        let serve = ["serve", "--port", "0", "--threads", "1"];
        assert_refused(&trail_rt(&[&serve, options].concat()), code, says);
    };
    let demo = format!("--model={}", demo().display());
    refused(&[&a, &a], 2, "the name 'a' is given twice");
    refused(&[&a, &demo], 2, "each of several models needs a name");
    refused(&["--model=a="], 2, "NAME=PATH");
    refused(&[&a, "--model=b=/nowhere"], 2, "model 'b': ");
    refused(&[&a, &b, "--max-model-len", "2000"], 2, "model 'a': --max-model-len is 2000");
    refused(&[&a, &b, "--kv-blocks", "100000000"], 2, "raise its --model-share");
    refused(&[&a, &b, "--model-share", "c=2"], 2, "give one of a, b");
    refused(&[&a, &b, "--model-share", "a=0"], 2, "NAME=WEIGHT");
    refused(&[&a, "--model-share", "a=2"], 2, "there is one model");
    refused(&[&a, &b, "--device", "cuda"], 2, "give --device cpu");
    for option in [
        "--served-model-name=x",
        "--lora=x=/x",
        "--allow-runtime-lora-updating",
        "--probe=x",
        "--encoder=x",
        "--speculate=draft:x",
    ] {
        let name = option.split('=').next().expect("a name");
        refused(&[&a, &b, option], 2, name);
        refused(&[&a, &b, option], 2, "is for one model");
    }
    for command in [&["generate", "--prompt", "a"][..], &["chat"], &["inspect"]] {
        let output = trail_rt(&[command, &[&*a, &*b]].concat());
        assert_refused(&output, 2, "this command takes one model, serve alone takes several");
    }
}
