//! Tokenizers from outside: rules that make texts longer, and tokens beyond the model's rows.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use trail_runtime::text::Tokenizer;

use super::transformers::{VOCAB, folder, load, tokenizer_json};

#[test]
fn added_tokens_beyond_the_models_rows_are_no_fault_of_a_model() {
    let mut json = tokenizer_json();
    let mut beyond = json["added_tokens"][0].clone();
    (beyond["id"], beyond["content"]) = (json!(VOCAB + 5), json!("<|beyond|>"));
    json["added_tokens"].as_array_mut().expect("tokens").push(beyond);
    let tokenizer = load("beyond", &json);
    assert_eq!(tokenizer.encode("<|beyond|>", false).expect("ids"), [VOCAB as u32]);
    assert!(Tokenizer::from_bytes(Path::new("t"), json.to_string().as_bytes(), VOCAB).is_err());
}

/// Rules that would take all memory at the first prompt, or panic at each one.
#[test]
fn rules_that_make_texts_much_longer_are_refused_by_name() {
    let replace = |from: &str, count: usize| {
        let content = "e".repeat(count);
        json!({ "type": "Replace", "pattern": { "String": from }, "content": content })
    };
    let sequence = |name: &str, rules: Vec<Value>| json!({ "type": "Sequence", name: rules });
    let prepend = json!({ "type": "Prepend", "prepend": "e".repeat(300) });
    let byte_level = tokenizer_json()["pre_tokenizer"].clone();
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let mut copies = tokenizer_json()["post_processor"].clone();
    copies["single"] = json!(vec![text; 1000]);
    for (part, rules, found) in [
        ("normalizer", sequence("normalizers", vec![replace("e", 2000); 4]), "up to 1600000000"),
        ("normalizer", sequence("normalizers", vec![replace("e", 3); 3]), "up to 27 bytes"),
        ("normalizer", replace("", 2), "the empty text"),
        ("normalizer", prepend, "add up to 300"),
        ("decoder", sequence("decoders", vec![replace("e", 2000); 4]), "up to 1600000000"),
        ("decoder", replace("", 2), "the empty text"),
        ("pre_tokenizer", sequence("pretokenizers", vec![byte_level; 9]), "up to 512 bytes"),
        ("post_processor", copies, "repeats a text 1000 times"),
    ] {
        let mut json = tokenizer_json();
        json[part] = rules;
        let folder = folder("growth");
        fs::write(folder.join("tokenizer.json"), json.to_string()).expect("write");
        let error = Tokenizer::load(&folder, VOCAB).err().expect(part).to_string();
        assert!(error.contains(part) && error.contains(found), "{error}");
    }
}
