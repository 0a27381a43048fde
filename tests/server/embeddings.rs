//! `/v1/embeddings`, by a small encoder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Server, assert_refused, trail_rt};
use serde_json::{Value, json};
use trail_encoder::Encoder;
use trail_probe::predictor::Pooling;

const EMBEDDINGS: &str = "/v1/embeddings";

/// The folder of a DistilBERT of two elements, removed at the end of its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trail-{name}-{}", std::process::id()));
        let seed =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds/encoder/distilbert");
        let seed = fs::read(seed).expect("a seed");
        fs::create_dir_all(&path).expect("a folder");
        let names = ["config.json", "tokenizer.json", "model.safetensors"];
        for (name, bytes) in names.iter().zip(seed.splitn(3, |&byte| byte == 0)) {
            fs::write(path.join(name), bytes).expect("written");
        }
        Folder(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    fn name(&self) -> &str {
        self.path().rsplit('/').next().expect("a name")
    }

    fn set_pooling(&self, mode: &str) {
        fs::create_dir_all(self.0.join("1_Pooling")).expect("a folder");
        let text = json!({ "word_embedding_dimension": 2, mode: true }).to_string();
        fs::write(self.0.join("1_Pooling/config.json"), text).expect("written");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn vector(answer: &Value, index: usize) -> Vec<f64> {
    let numbers = answer["data"][index]["embedding"].as_array().expect("a vector");
    numbers.iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// The encoder's own vector of `text`, at length 1.
fn reference(folder: &Folder, pooling: Pooling, text: &str) -> Vec<f64> {
    let encoder = Encoder::open(&folder.0, pooling).expect("an encoder");
    let vector = encoder.embed(text).expect("a vector");
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|&x| f64::from(x) / length).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    let far = found.iter().zip(expected).any(|(a, b)| (a - b).abs() > 1e-6);
    assert!(found.len() == expected.len() && !far, "{found:?}, not {expected:?}");
}

#[test]
fn texts_have_the_encoders_vectors_at_length_1() {
    let folder = Folder::new("embeddings");
    let server = Server::start(&["--embedding-model", folder.path()]);
    let (_, list) = server.request("GET", "/v1/models", "");
    assert_eq!(list["data"][1]["id"], folder.name());
    let body = json!({ "model": folder.name(), "input": ["a", "b a", "a"] });
    let answer = server.post(EMBEDDINGS, &body);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!(folder.name())));
    for (index, text) in ["a", "b a", "a"].into_iter().enumerate() {
        assert_eq!(answer["data"][index]["index"], index);
        assert_near(&vector(&answer, index), &reference(&folder, Pooling::Mean, text));
    }
    let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(answer["usage"]["total_tokens"], tokens);
    let one = server.post(EMBEDDINGS, &json!({ "input": "b a" }));
    assert_near(&vector(&one, 0), &vector(&answer, 1));
    let many = vec!["a"; 2048];
    let answer = server.post(EMBEDDINGS, &json!({ "input": many }));
    assert_eq!(answer["data"].as_array().map(Vec::len), Some(2048));
}

#[test]
fn the_folder_names_its_pooling() {
    let folder = Folder::new("pooling");
    folder.set_pooling("pooling_mode_cls_token");
    let server = Server::start(&["--embedding-model", folder.path()]);
    let answer = server.post(EMBEDDINGS, &json!({ "input": "b a" }));
    assert_near(&vector(&answer, 0), &reference(&folder, Pooling::Cls, "b a"));
    folder.set_pooling("pooling_mode_max_tokens");
    let output = trail_rt(&["serve", "--embedding-model", folder.path()]);
    assert_refused(&output, 2, "pooling_mode_max_tokens");
}

#[test]
fn base64_has_the_bytes_of_the_vector() {
    let folder = Folder::new("base64");
    let server = Server::start(&["--embedding-model", folder.path()]);
    let plain = server.post(EMBEDDINGS, &json!({ "input": "a" }));
    let body = json!({ "input": "a", "encoding_format": "base64" });
    let answer = server.post(EMBEDDINGS, &body);
    let text = answer["data"][0]["embedding"].as_str().expect("text").to_owned();
    let values = vector(&plain, 0);
    // 8 bytes are 11 digits and a sign at the end.
    assert!(text.len() == 12 && text.ends_with('=') && values.len() == 2, "{text}");
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u8> = text
        .trim_end_matches('=')
        .bytes()
        .flat_map(|digit| {
            let value = digits.iter().position(|&other| other == digit).expect("a digit");
            (0..6).rev().map(move |bit| (value >> bit & 1) as u8)
        })
        .collect();
    let bytes: Vec<u8> =
        bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit)).collect();
    for (bytes, value) in bytes.chunks_exact(4).zip(values) {
        let found = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        assert_eq!(f64::from(found), f64::from(value as f32));
    }
}

#[test]
fn inputs_that_cannot_be_embedded_are_refused_by_name() {
    let folder = Folder::new("refused");
    let server = Server::start(&["--embedding-model", folder.path()]);
    for (body, status, says) in [
        (json!({ "input": [] }), 400, "no input"),
        (json!({}), 400, "missing field `input`"),
        (json!({ "input": vec!["a"; 2049] }), 400, "more than 2048 prompts"),
        (json!({ "input": "a", "model": "demo" }), 404, "does not exist"),
        (json!({ "input": "a", "dimensions": 1 }), 400, "have 2 dimensions"),
        (json!({ "input": "a", "encoding_format": "int8" }), 400, "unknown value `int8`"),
        (json!({ "input": [[99999]] }), 400, "token 99999"),
    ] {
        let (found, error) = server.request("POST", EMBEDDINGS, &body.to_string());
        let message = error["error"]["message"].to_string();
        assert!(found == status && message.contains(says), "{found}: {message}");
    }
    let server = Server::start(&[]);
    let (status, error) = server.request("POST", EMBEDDINGS, &json!({ "input": "a" }).to_string());
    let message = error["error"]["message"].to_string();
    assert!(status == 404 && message.contains("--embedding-model"), "{message}");
}
