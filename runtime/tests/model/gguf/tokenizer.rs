//! Ids of vocabularies in GGUF files against llama.cpp's.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use trail_runtime::model::gguf::GgufModel;
use trail_runtime::text::Tokenizer;

/// One text and its ids, written by `runtime/tests/golden/make/gguf_ids.py`.
#[derive(Deserialize)]
struct Case {
    text: String,
    /// Special tokens of the text are text, and none are added.
    plain: Vec<u32>,
    /// Special tokens of the text are control tokens, and those that the file asks for are added.
    special: Vec<u32>,
    /// llama.cpp's text of `plain`, where that is not the text itself.
    decoded: Option<String>,
}

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-gguf")
}

pub(crate) fn tokenizer(file: &Path) -> Tokenizer {
    let model = GgufModel::open(file).expect("a GGUF file");
    let vocab_size = model.config().expect("a configuration").vocab_size;
    Tokenizer::from_gguf(model.metadata(), vocab_size).expect("a tokenizer")
}

/// Compares all lines of `golden` with the ids of `file`; returns the texts that differ.
fn differences(file: &Path, golden: &Path) -> Vec<String> {
    let cases: Vec<Case> =
        serde_json::from_slice(&std::fs::read(golden).expect("ids")).expect("cases");
    let tokenizer = tokenizer(file);
    let mut wrong = Vec::new();
    for Case { text, plain, special, decoded } in &cases {
        let found = tokenizer.encode_text(text, false).expect("ids");
        if found != *plain {
            wrong.push(format!("plain {text:?}: {found:?} instead of {plain:?}"));
        }
        let found = tokenizer.encode(text, true).expect("ids");
        if found != *special {
            wrong.push(format!("special {text:?}: {found:?} instead of {special:?}"));
        }
        let found = tokenizer.decode(plain, false);
        let expected = decoded.as_ref().unwrap_or(text);
        if found != *expected {
            wrong.push(format!("decoded {text:?}: {found:?} instead of {expected:?}"));
        }
    }
    let name = golden.display();
    println!("{name}: {} lines, {} differences", cases.len(), wrong.len());
    wrong
}

#[test]
fn ids_of_small_vocabularies_are_those_of_llama_cpp() {
    let mut wrong = Vec::new();
    for name in ["smollm", "llama-bpe", "qwen2", "gpt-2", "default", "gpt-4o"] {
        let file = golden_folder().join(format!("bpe-{name}.gguf"));
        wrong.extend(differences(&file, &file.with_extension("json")));
    }
    for name in ["spm", "spm-no-prefix"] {
        let file = golden_folder().join(format!("{name}.gguf"));
        wrong.extend(differences(&file, &file.with_extension("json")));
    }
    assert!(wrong.is_empty(), "{} differences: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
}

/// The same for a vocabulary of any size: `TRAIL_GGUF_FILE`, with its ids in `TRAIL_GGUF_IDS`.
#[test]
fn ids_of_a_named_file_are_those_of_llama_cpp() {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let (Some(file), Some(ids)) = (path("TRAIL_GGUF_FILE"), path("TRAIL_GGUF_IDS")) else { return };
    let begin = std::time::Instant::now();
    tokenizer(&file);
    println!("tokenizer in {:.0?}", begin.elapsed());
    let wrong = differences(&file, &ids);
    assert!(wrong.is_empty(), "{} differences: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
}
