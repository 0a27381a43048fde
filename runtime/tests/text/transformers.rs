//! Tokenizer and chat templates: against transformers, and edge cases.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trail_runtime::text::{ChatError, ChatMessage, ChatOptions, ChatTemplate, Tokenizer};

/// Ids of the tokenizer written by [`tokenizer_json`].
const BOS: u32 = 0;
const EOS: u32 = 1;
const USER: u32 = 2;
const FIRST_BYTE: u32 = 3;
pub(crate) const VOCAB: usize = 3 + 256 + 1;

/// Creates an empty folder for this test run.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("text").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Printable character that GPT-2's byte-level BPE uses for `byte`.
fn byte_char(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).expect("a character")
}

/// Builds a byte-level tokenizer with one merge, three special tokens, and `<s>` before each text.
pub(crate) fn tokenizer_json() -> Value {
    const SPECIAL: [&str; 3] = ["<s>", "</s>", "<|user|>"];
    let mut vocab: Map<String, Value> =
        SPECIAL.iter().zip(0..).map(|(token, id)| (token.to_string(), json!(id))).collect();
    for byte in 0..=255u8 {
        vocab.insert(byte_char(byte).to_string(), json!(FIRST_BYTE + u32::from(byte)));
    }
    vocab.insert("he".to_string(), json!(VOCAB - 1));
    let special = SPECIAL.iter().enumerate().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    });
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": special.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                          "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["h", "e"]]},
    })
}

fn tokenizer(name: &str) -> Tokenizer {
    load(name, &tokenizer_json())
}

pub(crate) fn load(name: &str, json: &Value) -> Tokenizer {
    let folder = folder(name);
    fs::write(folder.join("tokenizer.json"), json.to_string()).expect("write");
    Tokenizer::load(&folder, VOCAB).expect("a tokenizer")
}

#[test]
fn text_survives_the_round_trip() {
    let tokenizer = tokenizer("round-trip");
    for text in ["", "hello", "  two  spaces\n\ttab ", "Émile “no” 日本語 🦀", "\0\u{7f}"]
    {
        let ids = tokenizer.encode(text, false).expect("ids");
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
    let merged = tokenizer.encode("hello", false).expect("ids");
    assert_eq!((merged.len(), merged[0] as usize), (4, VOCAB - 1));
}

#[test]
fn special_tokens_are_known() {
    let tokenizer = tokenizer("special");
    let ids = tokenizer.encode("<|user|>hi</s>", true).expect("ids");
    assert_eq!((ids[0], ids[1], ids[ids.len() - 1]), (BOS, USER, EOS));
    assert_eq!(tokenizer.decode(&ids, true), "hi");
    assert_eq!(tokenizer.decode(&ids, false), "<s><|user|>hi</s>");
    assert!([BOS, EOS, USER].iter().all(|&id| tokenizer.is_special(id)));
    assert!(!tokenizer.is_special(FIRST_BYTE) && !tokenizer.is_special(u32::MAX));
    assert_eq!(tokenizer.token_id("</s>"), Some(EOS));
    assert_eq!(tokenizer.token(USER).as_deref(), Some("<|user|>"));
}

#[test]
fn half_a_character_decodes_to_the_replacement_character() {
    let tokenizer = tokenizer("half");
    let ids = tokenizer.encode("é", false).expect("ids");
    assert_eq!(ids.len(), 2);
    assert_eq!(tokenizer.decode(&ids[..1], true), "\u{fffd}");
    assert_eq!(tokenizer.decode(&[u32::MAX], true), "");
}

#[test]
fn bad_tokenizers_are_refused() {
    let empty = folder("refused");
    let message = |vocab| Tokenizer::load(&empty, vocab).err().expect("a refusal").to_string();
    assert!(message(VOCAB).contains("tokenizer.json: tokenizer: expected"));
    fs::write(empty.join("tokenizer.json"), "{\"version\": 3").expect("write");
    assert!(message(VOCAB).contains("tokenizer.json: content: expected"));
    fs::write(empty.join("tokenizer.json"), tokenizer_json().to_string()).expect("write");
    assert!(message(VOCAB - 1).contains("vocab_size 259, found id 259"));
}

#[test]
fn a_text_is_cut_at_a_length_that_has_room_for_it() {
    let cut = |length| tokenizer("cut").truncated(length).map(|of| of.encode("hello", true));
    assert_eq!(cut(3).expect("room").expect("ids").len(), 3);
    for length in [0, 1] {
        assert!(cut(length).expect_err("refused").contains("1 are special"));
    }
}

#[derive(Deserialize)]
struct ChatCase {
    name: String,
    template: String,
    bos_token: String,
    eos_token: String,
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn chats_render_as_in_transformers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text/chat.json");
    let cases: Vec<ChatCase> =
        serde_json::from_slice(&fs::read(file).expect("chat.json")).expect("cases");
    assert!(cases.len() >= 42);
    for case in cases {
        let template = ChatTemplate::new(Some(case.template), case.bos_token, case.eos_token);
        let rendered =
            template.expect("a template").render(&case.messages, case.add_generation_prompt);
        match (rendered, case.error) {
            (Ok(text), None) => assert_eq!(Some(text), case.text, "{}", case.name),
            (Err(ChatError::Render(found)), Some(error)) => assert_eq!(found, error),
            (found, error) => panic!("{}: {found:?} instead of {error:?}", case.name),
        }
    }
}

fn user(content: &str) -> [ChatMessage; 1] {
    [ChatMessage::new("user", content)]
}

#[test]
fn templates_are_found_in_each_place() {
    let folder = folder("places");
    let render = |config: Value| {
        fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("write");
        ChatTemplate::load(&folder).map(|template| template.render(&user("hi"), false))
    };
    let body = "{{ bos_token }}{{ messages[0].content }}";
    let text = render(json!({"chat_template": body, "bos_token": "<s>"}));
    assert_eq!(text.unwrap().unwrap(), "<s>hi");
    let named =
        json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": body}]);
    let text = render(json!({"chat_template": named, "bos_token": {"content": "<b>"}}));
    assert_eq!(text.unwrap().unwrap(), "<b>hi");
    let none = render(json!({"bos_token": null})).unwrap().unwrap_err();
    assert!(none.to_string().contains("/v1/completions"));
    let broken = render(json!({"chat_template": "{% if %}"})).unwrap_err().to_string();
    assert!(broken.contains("tokenizer_config.json: chat_template: expected a Jinja template"));
    let unnamed = render(json!({"chat_template": [{"name": "rag"}]})).err().unwrap().to_string();
    assert!(unnamed.contains("\"default\""));
    fs::write(folder.join("chat_template.jinja"), "file {{ messages[0].content }}").expect("write");
    let text = render(json!({"chat_template": body}));
    assert_eq!(text.unwrap().unwrap(), "file hi");
}

#[test]
fn a_chat_has_one_beginning() {
    let tokenizer = tokenizer("beginning");
    let source = "{{ bos_token }}<|user|>{{ messages[0].content }}";
    let template = ChatTemplate::new(Some(source.into()), "<s>".into(), "</s>".into()).unwrap();
    let ids = template.encode(&tokenizer, &user("he"), ChatOptions::default()).unwrap();
    assert_eq!(ids, [BOS, USER, VOCAB as u32 - 1]);
    assert_eq!(tokenizer.encode("he", true).unwrap(), [BOS, VOCAB as u32 - 1]);
}

/// Templates of models that were trained with transformers' masks of answers, SmolLM3's for one.
#[test]
fn tags_of_training_are_passed_over() {
    let source = "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration -%}\
                  {% endfor %}{% raw %}{%{% endraw %}";
    let template = ChatTemplate::new(Some(source.into()), String::new(), String::new()).unwrap();
    assert_eq!(template.render(&user("hi"), false).unwrap(), "hi{%");
}

fn rendered(source: &str, message: Value) -> Result<String, ChatError> {
    let template = ChatTemplate::new(Some(source.into()), String::new(), String::new());
    let messages: Vec<ChatMessage> =
        serde_json::from_value(json!([message])).expect("a conversation");
    template?.render(&messages, false)
}

/// As Jinja reads a source: the line ends of other systems are line feeds, in literals as well.
#[test]
fn line_ends_of_a_template_are_line_feeds() {
    let unix = "{%- if true %}\na\n{%- endif %}\n{{ 'b\nc' }}\n{# d #}\ne";
    let expected = rendered(unix, json!({"role": "user", "content": ""})).unwrap();
    for end in ["\r\n", "\r"] {
        let source = unix.replace('\n', end);
        let text = rendered(&source, json!({"role": "user", "content": ""})).unwrap();
        assert_eq!(text, expected, "{end:?}");
    }
    let kept = rendered("{{ messages[0].content }}", json!({"role": "user", "content": "a\r\nb"}));
    assert_eq!(kept.unwrap(), "a\r\nb");
}

#[test]
fn tojson_has_the_options_of_python() {
    // As text: a `Value` has the members in the order of their names.
    let data = r#"{"role": "user", "content": "", "x": {"b": [1, "ü"], "a": {}}}"#;
    let message: ChatMessage = serde_json::from_str(data).expect("a message");
    let text = |call: &str| {
        let source = format!("{{{{ messages[0].x | {call} }}}}");
        let template = ChatTemplate::new(Some(source), String::new(), String::new());
        template?.render(std::slice::from_ref(&message), false)
    };
    for (call, expected) in [
        ("tojson", r#"{"b": [1, "ü"], "a": {}}"#),
        ("tojson(sort_keys=true)", r#"{"a": {}, "b": [1, "ü"]}"#),
        ("tojson(ensure_ascii=true)", r#"{"b": [1, "\u00fc"], "a": {}}"#),
        ("tojson(true)", r#"{"b": [1, "\u00fc"], "a": {}}"#),
        ("tojson(separators=(',', ':'))", r#"{"b":[1,"ü"],"a":{}}"#),
        ("tojson(false, none, [',', ':'], true)", r#"{"a":{},"b":[1,"ü"]}"#),
        ("tojson(indent=1)", "{\n \"b\": [\n  1,\n  \"ü\"\n ],\n \"a\": {}\n}"),
        ("tojson(indent='\t')", "{\n\t\"b\": [\n\t\t1,\n\t\t\"ü\"\n\t],\n\t\"a\": {}\n}"),
        ("tojson(indent=0)", "{\n\"b\": [\n1,\n\"ü\"\n],\n\"a\": {}\n}"),
        ("tojson(indent=none)", r#"{"b": [1, "ü"], "a": {}}"#),
    ] {
        assert_eq!(text(call).unwrap(), expected, "{call}");
    }
    for (call, why) in [
        ("tojson(indent=100000)", "4096"),
        ("tojson(separators=[','])", "separators are two texts"),
        ("tojson(default=1)", "default"),
    ] {
        let error = text(call).unwrap_err().to_string();
        assert!(error.contains(why), "{call}: {error}");
    }
}

#[test]
fn all_fields_of_a_message_reach_the_template() {
    let message = json!({
        "role": "assistant", "content": "4", "reasoning_content": "2+2", "x": {"n": 1.5}, "big": 1e16,
        "tags": ["a", null, true],
    });
    let source = "{% for m in messages %}<think>{{ m.reasoning_content }}</think>{{ m.content }}\
                  {{ m.x | tojson }}{{ m.big }}{{ m.tags }}{{ m.none is defined }}{% endfor %}";
    let text = rendered(source, message).unwrap();
    assert_eq!(text, "<think>2+2</think>4{\"n\": 1.5}1e+16['a', None, True]False");
}

#[test]
fn the_tokenizers_special_tokens_reach_the_template() {
    let folder = folder("special-tokens");
    let config = json!({
        "chat_template": "{{ pad_token }}|{{ unk_token }}|{{ cls_token is defined }}\
                          |{{ additional_special_tokens[1] }}",
        "additional_special_tokens": ["<a>", {"content": "<b>"}],
        "pad_token": "<pad>", "unk_token": {"content": "<unk>"}, "cls_token": null,
    });
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("write");
    let template = ChatTemplate::load(&folder).expect("a template");
    assert_eq!(template.render(&user(""), false).unwrap(), "<pad>|<unk>|False|<b>");
    fs::write(folder.join("chat_template.jinja"), b"caf\xe9").expect("write");
    let refusal = ChatTemplate::load(&folder).err().expect("a refusal").to_string();
    assert!(refusal.contains("expected text in UTF-8"), "{refusal}");
}

#[test]
fn a_broken_template_is_named_by_each_chat() {
    let template = ChatTemplate::broken("line 3: unexpected end".into());
    assert!(!template.is_present() && template.fault().is_some());
    let error = template.render(&user("hi"), false).unwrap_err().to_string();
    assert!(error.contains("cannot be used: line 3: unexpected end: send a plain prompt"));
}

#[test]
fn the_date_is_available() {
    let source = "{{ strftime_now('%Y-%m-%d') }}".to_string();
    let template = ChatTemplate::new(Some(source), String::new(), String::new()).unwrap();
    let date = template.render(&user(""), false).unwrap();
    assert_eq!((date.len(), date.starts_with("20")), (10, true));
}

/// As SmolLM2's: a token of many spaces, and a byte that no token has, which the tokenizer drops.
#[test]
fn a_long_token_and_a_missing_byte_leave_other_texts_bounded() {
    let mut json = tokenizer_json();
    let vocab = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let dropped = vocab.remove(&byte_char("日".as_bytes()[0]).to_string()).expect("an entry");
    vocab.insert(byte_char(b' ').to_string().repeat(40), dropped);
    let tokenizer = load("bound-of-missing", &json);
    for text in ["12345", "日1日日2", "日日日", "a \u{e9}", &" ".repeat(39)] {
        let tokens = tokenizer.encode(text, false).expect("ids").len();
        assert!(tokenizer.least_tokens(text) <= tokens, "{text}");
    }
    assert_eq!(tokenizer.least_tokens("12345"), 5);
    assert_eq!(tokenizer.least_tokens(&"日".repeat(9)), 18);
    assert_eq!(tokenizer.least_tokens(&" ".repeat(401)), 10);
}

/// Words count whole, and a run of spaces is one: nothing is known of it before its end.
#[test]
fn the_beginning_of_a_long_text_tells_of_its_tokens() {
    let tokenizer = tokenizer("beginning");
    let words = "he said, \u{e9}l\u{e9}mentaire: 1234 + 5! ".repeat(50);
    let tokens = tokenizer.encode(&words, false).expect("ids").len();
    let of_half = tokenizer.least_tokens_of_beginning(&words, words.len() / 2);
    assert!((tokens * 9 / 20..=tokens / 2).contains(&of_half), "{of_half} of {tokens}");
    assert_eq!(tokenizer.least_tokens_of_beginning(&" ".repeat(1000), 500), 0);
}

#[test]
fn a_text_has_at_least_the_tokens_that_its_bytes_need() {
    let tokenizer = tokenizer("bound");
    let longest = "<|user|>";
    assert_eq!(tokenizer.encode(&longest.repeat(10), false).expect("ids").len(), 10);
    assert_eq!(tokenizer.least_tokens(&longest.repeat(10)), 10);
    for text in ["", "hehe", "  Émile 日本語 🦀 <|user|>he", "\u{FDD0}\u{FDD0}", "K\u{212A}"]
    {
        let tokens = tokenizer.encode(text, false).expect("ids").len();
        assert!(tokenizer.least_tokens(text) <= tokens, "{text}");
        for bytes in 0..=text.len() + 1 {
            assert!(tokenizer.least_tokens_of_beginning(text, bytes) <= tokens, "{text} {bytes}");
        }
    }
    // No longer token has a byte of this character, though other tokens are longer.
    let rare = "日".repeat(100);
    let tokens = tokenizer.encode(&rare, false).expect("ids").len();
    assert_eq!((tokenizer.least_tokens(&rare), tokens), (300, 300));
    let with = |path: &str, value: Value| {
        let mut json = tokenizer_json();
        *json.pointer_mut(path).expect("a field") = value;
        load("bound-of-other", &json).least_tokens(&longest.repeat(31))
    };
    // NFC may shorten a text to a third, which any byte may be part of.
    assert_eq!(with("/normalizer", json!({"type": "NFC"})), 10);
    let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
    let unbounded = [
        ("/normalizer", strip.clone()),
        ("/normalizer", json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, strip]})),
        ("/pre_tokenizer", json!({"type": "Whitespace"})),
        ("/pre_tokenizer", json!(null)),
        ("/added_tokens/2/rstrip", json!(true)),
    ];
    for (path, value) in unbounded {
        assert_eq!(with(path, value.clone()), 0, "{path}: {value}");
    }
}
