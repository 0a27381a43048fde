//! A model of one GGUF file: weights, tokenizer and chat template are those of the folder.

use std::fs;
use std::path::Path;

use crate::common::{assert_refused, trail_rt};
use crate::gguf;
use serde_json::Value;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");

/// The demo model as one file, alone in its folder.
fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gguf-file").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("demo.gguf");
    fs::write(&file, gguf::demo(Path::new(DEMO))).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

fn json(arguments: &[&str]) -> Value {
    let output = trail_rt(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn it_answers_as_the_folder_does() {
    let file = file("answers");
    for prompt in ["Count to ten.", "Tell me a story about a cat.\n\n  It's 1234, isn't it?"] {
        let generate = ["generate", "--prompt", prompt, "--temperature", "0", "--json"];
        let [one, folder] =
            [&file, DEMO].map(|model| json(&[&generate[..], &["--model", model]].concat()));
        for part in ["prompt_tokens", "tokens", "logprobs", "text"] {
            assert_eq!(one[part], folder[part], "{part} of {prompt:?}");
        }
    }
}

#[test]
fn inspect_tells_the_same_of_both() {
    let [one, folder] = [&file("inspect"), DEMO].map(|path| json(&["inspect", path, "--json"]));
    assert_eq!(one["model"], "demo");
    let members =
        ["parameters", "layers", "max_context", "chat_template", "memory", "types", "tensors"];
    for part in members {
        assert_eq!(one[part], folder[part], "{part}");
    }
    assert_eq!(one["tokenizer"], folder["tokenizer"]);
    assert_eq!((&one["probe"], &folder["probe"]["fits"]), (&Value::Null, &Value::Bool(true)));
}

/// The demo's weights are bf16, whose products are the same in both arithmetics unless the CPU is
/// faster in bf16: then activations have 8 significant bits.
#[test]
fn accuracy_is_that_of_the_text_and_needs_enough_of_it() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let arguments = ["bench", "accuracy", "--text", readme, "--tokens", "17", "--sequences"];
    let report = json(&[&arguments[..], &["3", "--json"]].concat());
    assert_eq!(report["positions"], 3 * 16);
    assert_eq!(report["byte_products"], Value::Null);
    let difference = report["mean_abs_difference_of_logprobs"].as_f64().expect("a number");
    if report["bf16_products"].is_null() {
        assert_eq!((difference, &report["same_top_1"]), (0.0, &Value::from(1.0)));
        assert_eq!(report["perplexity"]["exact"], report["perplexity"]["fast"]);
    } else {
        assert!((1e-6..0.05).contains(&difference), "{difference}");
    }
    assert_refused(&trail_rt(&[&arguments[..], &["4000"]].concat()), 2, "lower --sequences");
}

#[test]
fn repacking_is_for_products_in_8_bits() {
    let arguments = ["generate", "--prompt", "x", "--max-tokens", "1", "--repack"];
    assert_refused(
        &trail_rt(&[&arguments[..], &["--compute", "exact"]].concat()),
        2,
        "choose --compute fast",
    );
    let on_gpu = ["--device", "cuda"];
    assert_refused(&trail_rt(&[&arguments[..], &on_gpu].concat()), 2, "choose --device cpu");
    let bench = ["bench", "decode", "--batch", "1", "--repack"];
    assert_refused(&trail_rt(&[&bench[..], &on_gpu].concat()), 2, "--device cpu");
    // The demo's weights are bf16: nothing is repacked.
    assert!(trail_rt(&arguments).status.success());
}

#[test]
fn a_damaged_file_is_refused_in_one_line() {
    let file = file("damaged");
    let whole = fs::read(&file).expect("the file");
    for end in [0, 3, 100, whole.len() / 2] {
        fs::write(&file, &whole[..end]).expect("written");
        let arguments = ["generate", "--model", &file, "--prompt", "hi"];
        assert_refused(&trail_rt(&arguments), 1, "demo.gguf");
    }
}
