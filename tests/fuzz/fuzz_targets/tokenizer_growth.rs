//! Rules of a tokenizer that change the length of a text: refused, or no text becomes much longer.
#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use trail_runtime::text::Tokenizer;

#[derive(Arbitrary, Debug)]
enum Rule {
    Replace { from: String, times: u16, to: String },
    Regex { class: u8, times: u8, to: String },
    Prepend { text: String, times: u8 },
    ByteLevel,
    Metaspace { always: bool },
    Form { kind: u8 },
    Fallback,
    Fuse,
}

#[derive(Arbitrary, Debug)]
struct Input {
    normalizers: Vec<Rule>,
    pre_tokenizers: Vec<Rule>,
    decoders: Vec<Rule>,
    copies: u8,
    text: String,
}

fn rule(rule: &Rule) -> Value {
    match rule {
        Rule::Replace { from, times, to } => json!({ "type": "Replace",
            "pattern": { "String": from }, "content": to.repeat(usize::from(times % 2048)) }),
        Rule::Regex { class, times, to } => {
            let regex = ["x*", ".", "\\s+", "$", "[a-e]{2}"][usize::from(class % 5)];
            json!({ "type": "Replace", "pattern": { "Regex": regex },
                "content": to.repeat(usize::from(*times)) })
        }
        Rule::Prepend { text, times } => {
            json!({ "type": "Prepend", "prepend": text.repeat(usize::from(*times)) })
        }
        Rule::ByteLevel => json!({ "type": "ByteLevel", "add_prefix_space": true,
            "trim_offsets": true, "use_regex": true }),
        Rule::Metaspace { always } => json!({ "type": "Metaspace", "replacement": "\u{2581}",
            "prepend_scheme": if *always { "always" } else { "first" }, "split": true }),
        Rule::Form { kind } => {
            let form = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"][usize::from(kind % 5)];
            json!({ "type": form })
        }
        Rule::Fallback => json!({ "type": "ByteFallback" }),
        Rule::Fuse => json!({ "type": "Fuse" }),
    }
}

fuzz_target!(init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))), |input: Input| {
    let sequence = |name: &str, rules: &[Rule], allowed: fn(&Rule) -> bool| {
        let rules: Vec<Value> = rules.iter().filter(|of| allowed(of)).take(8).map(rule).collect();
        json!({ "type": "Sequence", name: rules })
    };
    let is_normalizer =
        |of: &Rule| !matches!(of, Rule::Metaspace { .. } | Rule::Fallback | Rule::Fuse);
    let is_splitter = |of: &Rule| matches!(of, Rule::Metaspace { .. } | Rule::ByteLevel);
    let is_decoder = |of: &Rule| !matches!(of, Rule::Prepend { .. } | Rule::Form { .. });
    let bytes = (0..=255).map(|byte| (format!("<0x{byte:02X}>"), json!(byte)));
    let words = [" ", "e", "\u{e9}", "\u{2581}"].into_iter().zip(256..);
    let words = words.map(|(word, id)| (word.to_owned(), json!(id)));
    let vocab: serde_json::Map<String, Value> = bytes.chain(words).collect();
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let json = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": sequence("normalizers", &input.normalizers, is_normalizer),
        "pre_tokenizer": sequence("pretokenizers", &input.pre_tokenizers, is_splitter),
        "post_processor": { "type": "TemplateProcessing", "special_tokens": {},
            "single": vec![text; usize::from(input.copies % 8)],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } },
                { "Sequence": { "id": "B", "type_id": 1 } }] },
        "decoder": sequence("decoders", &input.decoders, is_decoder),
        "model": { "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": [] },
    });
    let bytes = json.to_string().into_bytes();
    let tokenizer = match Tokenizer::from_bytes(Path::new("tokenizer.json"), &bytes, 512) {
        Err(error) => return assert_eq!(error.to_string().lines().count(), 1),
        Ok(tokenizer) => tokenizer,
    };
    let end = (0..=input.text.len().min(64)).rev().find(|&at| input.text.is_char_boundary(at));
    let text = &input.text[..end.unwrap_or(0)];
    let Ok(ids) = tokenizer.encode(text, true) else { return };
    // 16 bytes for each, and for each piece 256 more; 11 by Unicode's forms, whose
    // later ones change little; then 16 by the pre-tokenizer.
    assert!(ids.len() <= (text.len() + 1) * 273 * 16 * 16 * 4, "{} ids", ids.len());
    let decoded = tokenizer.decode(&ids, false).len();
    assert!(decoded <= (ids.len() + 1) * 6 * 273, "{decoded} bytes of {} ids", ids.len());
});
