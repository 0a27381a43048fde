//! Adapters over HTTP: chosen by name, loaded and unloaded.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{self, Server, assert_refused, trail_rt};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";
const ALLOW: &str = "--allow-runtime-lora-updating";

/// Rank of the adapters.
const RANK: usize = 4;

/// Module, outputs and inputs in the demo model.
const PROJECTIONS: [(&str, usize, usize); 3] =
    [("self_attn.q_proj", 256, 256), ("self_attn.v_proj", 128, 256), ("mlp.down_proj", 256, 640)];

/// A folder with an adapter of the demo model, removed at the end of its test.
struct Folder(PathBuf);

impl Folder {
    /// Random weights of `seed`, as PEFT writes them.
    fn new(name: &str, seed: u64) -> Folder {
        let folder = std::env::temp_dir().join(format!("trail-lora-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let config = json!({
            "peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none",
            "target_modules": ["q_proj", "v_proj", "down_proj"],
        });
        fs::write(folder.join("adapter_config.json"), config.to_string()).expect("written");
        fs::write(folder.join("adapter_model.safetensors"), weights(seed)).expect("written");
        Folder(folder)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    /// The option that loads it as `name`.
    fn option(&self, name: &str) -> String {
        format!("--lora={name}={}", self.path())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A safetensors file of all factors, in f32.
fn weights(seed: u64) -> Vec<u8> {
    let (mut header, mut data, mut state) = (serde_json::Map::new(), Vec::new(), seed);
    for layer in 0..6 {
        for (module, outputs, inputs) in PROJECTIONS {
            for (factor, shape) in [("A", [RANK, inputs]), ("B", [outputs, RANK])] {
                let name =
                    format!("base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight");
                let begin = data.len();
                for _ in 0..shape[0] * shape[1] {
                    // Knuth's multiplier; values of -0.1 to 0.1.
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let value = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.2;
                    data.extend(value.to_le_bytes());
                }
                let offsets = [begin, data.len()];
                header.insert(
                    name,
                    json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }),
                );
            }
        }
    }
    let header = Value::from(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn body(model: &str, at: usize) -> Value {
    json!({ "model": model, "prompt": format!("Once upon a time {at}"), "max_tokens": 12,
            "temperature": 0, "ignore_eos": true, "logprobs": 1 })
}

fn refusal(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let (status, answer) = server.request("POST", path, &body.to_string());
    (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
}

/// Answers of each adapter and of the model, many at once, are those alone; each names its model.
#[test]
fn requests_choose_an_adapter_by_name() {
    let (one, two) = (Folder::new("one", 1), Folder::new("two", 2));
    let options = [&*one.option("one"), &*two.option("two")];
    let server = Server::start(&options);
    let names = ["demo", "one", "two"];
    let alone: Vec<Value> = names.map(|name| server.post(COMPLETIONS, &body(name, 0))).into();
    for (name, answer) in names.iter().zip(&alone) {
        assert_eq!(answer["model"], **name);
    }
    assert_ne!(alone[0]["choices"], alone[1]["choices"]);
    assert_ne!(alone[1]["choices"], alone[2]["choices"]);
    let begun: Vec<_> =
        (0..24).map(|at| (at, server.begin(COMPLETIONS, &body(names[at % 3], at / 12)))).collect();
    for (at, connection) in begun {
        let (status, answer) = common::receive(connection);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!((status, &answer["model"]), (200, &json!(names[at % 3])));
        if at < 12 {
            assert_eq!(answer["choices"], alone[at % 3]["choices"], "{at}");
        }
    }
    let chat = json!({ "model": "two", "messages": [{ "role": "user", "content": "Hi" }],
                       "max_tokens": 2 });
    for path in ["/v1/chat/completions", "/v1/messages"] {
        assert_eq!(server.post(path, &chat)["model"], "two", "{path}");
    }
    let response = json!({ "model": "one", "input": "Hi", "max_output_tokens": 2 });
    assert_eq!(server.post("/v1/responses", &response)["model"], "one");
    let (status, message) = refusal(&server, COMPLETIONS, &body("three", 0));
    assert!(status == 404 && message.contains("'demo', 'one', 'two'"), "{message}");
    let (status, models) = server.request("GET", "/v1/models", "");
    assert_eq!((status, models["data"].as_array().expect("models").len()), (200, 3));
    let card = &models["data"][1];
    assert_eq!((&card["id"], &card["parent"]), (&json!("one"), &json!("demo")));
    assert_eq!(card["root"], one.path());
    assert_eq!(server.request("GET", "/v1/models/one", "").1, *card);
    // Nothing changes unless the server was started for it.
    let load = json!({ "lora_name": "three", "lora_path": one.path() });
    let (status, message) = refusal(&server, LOAD, &load);
    assert!(status == 403 && message.contains(ALLOW), "{message}");
}

/// Loaded under traffic, unloaded while a request runs with it.
#[test]
fn adapters_are_loaded_and_unloaded() {
    let (one, two) = (Folder::new("a", 1), Folder::new("b", 2));
    let server = Server::start(&[ALLOW]);
    let plain = server.post(COMPLETIONS, &body("demo", 0));
    let load = |name: &str, folder: &Folder, inplace: bool| {
        let body =
            json!({ "lora_name": name, "lora_path": folder.path(), "load_inplace": inplace });
        let (status, text) = common::receive(server.begin(LOAD, &body));
        (status, text)
    };
    let (status, text) = load("a", &one, false);
    assert_eq!((status, &*text), (200, "Success: LoRA adapter 'a' added successfully."));
    let first = server.post(COMPLETIONS, &body("a", 0));
    assert_ne!(first["choices"], plain["choices"]);
    for (name, says) in [("a", "an adapter called 'a'"), ("demo", "a model called 'demo'")] {
        let (status, text) = load(name, &two, false);
        assert!(status == 400 && text.contains(says), "{text}");
    }
    let missing = json!({ "lora_name": "c", "lora_path": "/nowhere" });
    let (status, message) = refusal(&server, LOAD, &missing);
    assert!(status == 400 && message.contains("adapter_config.json"), "{message}");
    let (status, message) = refusal(&server, LOAD, &json!({ "lora_name": "c" }));
    assert!(status == 400 && message.contains("lora_path"), "{message}");
    // A request that runs keeps its adapter, whatever becomes of the name.
    let long = |model: &str| {
        let mut long = body(model, 0);
        (long["max_tokens"], long["stream"]) = (json!(200), json!(false));
        long
    };
    let expected = server.post(COMPLETIONS, &long("a"));
    let running = server.begin(COMPLETIONS, &long("a"));
    server.wait_for("trail_requests_running", 1.0);
    assert_eq!(load("a", &two, true).0, 200);
    let (status, answer) = common::receive(running);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((status, &answer["choices"]), (200, &expected["choices"]));
    let second = server.post(COMPLETIONS, &body("a", 0));
    assert_ne!(second["choices"], first["choices"]);
    let unload = json!({ "lora_name": "a" });
    let (status, text) = common::receive(server.begin(UNLOAD, &unload));
    assert_eq!((status, &*text), (200, "Success: LoRA adapter 'a' removed successfully."));
    assert_eq!(refusal(&server, UNLOAD, &unload).0, 404);
    assert_eq!(refusal(&server, COMPLETIONS, &body("a", 0)).0, 404);
    assert_eq!(server.post(COMPLETIONS, &body("demo", 0))["choices"], plain["choices"]);
}

/// Keys of users serve with adapters, and do not change them.
#[test]
fn the_key_of_the_operator_alone_changes_adapters() {
    let folder = Folder::new("keys", 1);
    let keys = folder.0.join("keys.toml");
    fs::write(&keys, "[[keys]]\nname = \"user\"\nkey = \"sk-user\"\n").expect("written");
    let options = [ALLOW, "--api-keys", keys.to_str().expect("UTF-8")];
    let server = Server::start_in(&options, &[("TRAIL_API_KEY", "sk-own")]);
    let load = json!({ "lora_name": "a", "lora_path": folder.path() }).to_string();
    let of = |key| server.exchange("POST", LOAD, &[("x-api-key", key)], &load).status;
    assert_eq!([of("sk-none"), of("sk-user"), of("sk-own")], [401, 403, 200]);
    let body = body("a", 0).to_string();
    let answer = server.exchange("POST", COMPLETIONS, &[("x-api-key", "sk-user")], &body);
    assert_eq!(answer.json()["model"], "a");
}

#[test]
fn bad_options_are_refused_in_one_line() {
    let folder = Folder::new("bad", 1);
    let model = |option: &str| trail_rt(&["serve", "--port", "0", option]);
    assert_refused(&model("--lora=a"), 2, "NAME=DIR");
    assert_refused(&model("--lora=a=/nowhere"), 1, "adapter_config.json");
    assert_refused(&model(&folder.option("demo")), 2, "a model called 'demo'");
    let weights = folder.0.join("adapter_model.safetensors");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime/tests/golden-lora/all");
    fs::copy(golden.join("adapter_model.safetensors"), weights).expect("copied");
    assert_refused(&model(&folder.option("a")), 1, "trained on this model");
}
