//! A bound on how much longer a tokenizer's rules make a text. The file comes from outside: four
//! rules that replace a letter by 2,000 would take all memory at the first prompt.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::tokenizer::Inner;

/// Most bytes that the rules of one part may make of a byte. Those in use make 9 at most, besides
/// Unicode's normal forms, which are not counted.
const MAX_FACTOR: usize = 16;
/// Most bytes that the rules of one part may add to a text, whatever its length.
const MAX_ADDED: usize = 256;
/// Bytes that a rule of SentencePiece's character map may have in place of a character; those in
/// use have 54 at most.
const CHARACTER_BYTES: usize = 64;
/// Special tokens that a template may put around a text.
const MAX_SPECIAL: usize = 64;
/// Times that the post-processor may repeat a text.
const MAX_COPIES: usize = 4;

/// Growth of a text of n bytes to `factor` * n + `added`.
#[derive(Clone, Copy)]
struct Growth {
    factor: usize,
    added: usize,
}

const SAME: Growth = Growth { factor: 1, added: 0 };

impl Growth {
    fn by(factor: usize) -> Growth {
        Growth { factor, ..SAME }
    }

    /// This growth, and then the other one.
    fn then(self, next: Growth) -> Growth {
        Growth {
            factor: self.factor.saturating_mul(next.factor),
            added: self.added.saturating_mul(next.factor).saturating_add(next.added),
        }
    }
}

/// Fails if the rules of `tokenizer` may make a text much longer.
pub(super) fn check(tokenizer: &Inner) -> Result<(), String> {
    let json = |value: Result<Value, serde_json::Error>| value.map_err(|error| error.to_string());
    let parts = [
        ("normalizer", json(serde_json::to_value(tokenizer.get_normalizer()))?),
        ("pre_tokenizer", json(serde_json::to_value(tokenizer.get_pre_tokenizer()))?),
        ("decoder", json(serde_json::to_value(tokenizer.get_decoder()))?),
    ];
    for (part, rules) in &parts {
        let growth = growth(rules).map_err(|why| format!("{part}: {why}"))?;
        if growth.factor > MAX_FACTOR || growth.added > MAX_ADDED {
            return Err(format!(
                "{part}: its rules make a byte of a text up to {} bytes and add up to {}, more \
                 than {MAX_FACTOR} and {MAX_ADDED}",
                growth.factor, growth.added
            ));
        }
    }
    let copies = copies(&json(serde_json::to_value(tokenizer.get_post_processor()))?);
    match copies <= MAX_COPIES {
        true => Ok(()),
        false => Err(format!("post_processor: it repeats a text {copies} times")),
    }
}

fn growth(rules: &Value) -> Result<Growth, String> {
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    Ok(match rules["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let members = ["normalizers", "pretokenizers", "decoders"];
            let members = members.iter().filter_map(|name| rules[name].as_array()).flatten();
            members.map(growth).try_fold(SAME, |so_far, next| next.map(|next| so_far.then(next)))?
        }
        "Prepend" => Growth { factor: 1, added: length(&rules["prepend"]) },
        "Replace" => {
            let content = length(&rules["content"]);
            match rules["pattern"]["String"].as_str() {
                Some("") => return Err("a rule replaces the empty text".into()),
                Some(pattern) => Growth::by(content.div_ceil(pattern.len()).max(1)),
                // A match of one byte.
                None => Growth::by(content.max(1)),
            }
        }
        // Both replace their text, and a word's end, by a space.
        "BPEDecoder" | "CTC" => {
            let texts = ["suffix", "pad_token", "word_delimiter_token"].map(|name| &rules[name]);
            if texts.iter().any(|text| text.as_str() == Some("")) {
                return Err("a rule replaces the empty text".into());
            }
            SAME
        }
        // Spaces around each character of three bytes.
        "BertNormalizer" if rules["handle_chinese_chars"] == true => Growth::by(2),
        "ByteLevel" => Growth { factor: 2, added: 1 },
        "Metaspace" => Growth { factor: length(&rules["replacement"]).max(1), added: 4 },
        "Precompiled" => {
            let longest = longest_replacement(length_checked(&rules["precompiled_charsmap"])?);
            Growth::by(longest.div_ceil(CHARACTER_BYTES).max(1))
        }
        _ => SAME,
    })
}

fn length_checked(map: &Value) -> Result<&str, String> {
    map.as_str().ok_or_else(|| "a character map that is no text".into())
}

/// Bytes of the longest replacement of a character map: base64 of the length of a trie in 4 bytes,
/// the trie, and the replacements, each with a zero behind it.
fn longest_replacement(base64: &str) -> usize {
    // The tokenizer has read it, or it would not be here.
    let bytes = STANDARD.decode(base64).unwrap_or_default();
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return 0 };
    let replacements = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    replacements.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

/// Times that a text is in the tokens of one text.
fn copies(processor: &Value) -> usize {
    match processor["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            processor["processors"].as_array().into_iter().flatten().map(copies).product()
        }
        "TemplateProcessing" => {
            let pieces = processor["single"].as_array().into_iter().flatten();
            let texts = pieces.clone().filter(|piece| piece.get("Sequence").is_some()).count();
            let special = pieces.filter_map(|piece| piece["SpecialToken"]["id"].as_str());
            let ids =
                |id: &str| processor["special_tokens"][id]["ids"].as_array().map_or(1, Vec::len);
            let added: usize = special.map(ids).sum();
            // As if the tokens beyond those of any real template were one more text each.
            texts.max(1) + added.saturating_sub(MAX_SPECIAL)
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_character_map_is_measured_by_its_longest_replacement() {
        // A trie of 4 bytes, and the replacements "ab" and "abc".
        assert_eq!(longest_replacement("BAAAAAAAAABhYgBhYmMA"), 3);
        assert_eq!(longest_replacement(""), 0);
        assert_eq!(longest_replacement("////////"), 0);
    }

    #[test]
    fn growth_is_the_product_over_a_sequence() {
        let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let prepend = json!({ "type": "Prepend", "prepend": "\u{2581}" });
        let sequence = json!({ "type": "Sequence",
            "normalizers": [prepend, replace(" ", "\u{2581}"), replace("ab", "cdefg")] });
        let found = growth(&sequence).expect("a bound");
        assert_eq!((found.factor, found.added), (9, 27));
        assert!(growth(&replace("", "x")).is_err());
        let regex = json!({ "type": "Replace", "pattern": { "Regex": "." }, "content": "abc" });
        assert_eq!(growth(&regex).expect("a bound").factor, 3);
    }

    #[test]
    fn rules_that_replace_the_empty_text_and_repeat_tokens_are_refused() {
        for rule in [
            json!({ "type": "BPEDecoder", "suffix": "" }),
            json!({ "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "" }),
        ] {
            assert!(growth(&rule).is_err(), "{rule}");
        }
        let bert = json!({ "type": "BertNormalizer", "handle_chinese_chars": true });
        let many = json!({ "type": "Sequence", "normalizers": vec![bert; 5] });
        assert!(growth(&many).expect("a bound").factor > MAX_FACTOR);
        let special = json!({ "SpecialToken": { "id": "s", "type_id": 0 } });
        let template = json!({ "type": "TemplateProcessing", "single": vec![special; 10],
            "special_tokens": { "s": { "id": "s", "ids": vec![1; 100], "tokens": [] } } });
        assert!(copies(&template) > MAX_COPIES);
    }

    #[test]
    fn a_text_is_in_a_template_as_often_as_it_says() {
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let template = json!({ "type": "TemplateProcessing", "single": [text, text, text] });
        let twice = json!({ "type": "Sequence", "processors": [template, template] });
        assert_eq!((copies(&template), copies(&twice), copies(&Value::Null)), (3, 9, 1));
    }
}
