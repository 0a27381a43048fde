//! Damaged and changed files of an encoder's folder.

use std::fs;
use std::path::{Path, PathBuf};

use trail_encoder::Encoder;
use trail_probe::predictor::Pooling;

const NAMES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

/// The folder of a DistilBERT of two tokens, two positions and two elements.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("folder").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/seeds/encoder/distilbert");
    let seed = fs::read(seed).expect("a seed");
    for (name, bytes) in NAMES.iter().zip(seed.splitn(3, |&byte| byte == 0)) {
        fs::write(folder.join(name), bytes).expect("written");
    }
    folder
}

fn open(folder: &Path) -> Result<Encoder, String> {
    Encoder::open(folder, Pooling::Mean).map_err(|error| error.to_string())
}

/// Replaces `from` in file `name` of `folder`.
fn edit(folder: &Path, name: &str, from: &str, to: &str) {
    let text = fs::read_to_string(folder.join(name)).expect("text");
    assert!(text.contains(from), "{from}");
    fs::write(folder.join(name), text.replacen(from, to, 1)).expect("written");
}

fn assert_refused(folder: &Path, why: &str) {
    let error = open(folder).err().unwrap_or_else(|| panic!("{why}: opened"));
    assert!(error.contains(why) && error.lines().count() == 1, "{why}: {error}");
}

/// A template of `pieces`, with one special token.
fn template(pieces: &str) -> String {
    format!(
        r#""post_processor": {{"type": "TemplateProcessing", "single": [{pieces}], "pair":
        [{{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"Sequence": {{"id": "B", "type_id": 0}}}}],
        "special_tokens": {{"[CLS]": {{"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]}}}}}}"#
    )
}

#[test]
fn a_tokenizer_on_which_the_crate_panics_is_refused() {
    let undefined = template(r#"{"SpecialToken": {"id": "[SEP]", "type_id": 0}}"#);
    let pair = template(r#"{"Sequence": {"id": "B", "type_id": 0}}"#);
    let charsmap =
        "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}";
    for (from, to, why) in [
        ("\"decoder\": null", "\"decoder\": {\"type\": \"Fuse\" \"a\"}", "expected `,`"),
        ("\"normalizer\": null", charsmap, "tokenizer.json: content"),
        ("\"post_processor\": null", &undefined, "not applicable"),
        ("\"post_processor\": null", &pair, "not applicable"),
    ] {
        let folder = folder("rules");
        edit(&folder, "tokenizer.json", from, to);
        assert_refused(&folder, why);
    }
}

#[test]
fn a_length_without_room_for_a_text_is_refused() {
    let folder = folder("length");
    let sentence = folder.join("sentence_bert_config.json");
    let limit = |json: &str| fs::write(&sentence, json).expect("written");
    for (json, why) in [
        ("{\"max_seq_length\": 0}", "0 are special"),
        ("{\"max_seq_length\": \"2\"}", "sentence_bert_config.json"),
        ("{", "sentence_bert_config.json"),
        ("[]", "sentence_bert_config.json"),
    ] {
        limit(json);
        assert_refused(&folder, why);
    }
    limit("{\"max_seq_length\": null}");
    assert_eq!(open(&folder).expect("an encoder").max_length(), 2);
    limit("{\"max_seq_length\": 1}");
    assert_eq!(open(&folder).expect("an encoder").max_length(), 1);
    let cls = template(
        r#"{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}"#,
    );
    edit(&folder, "tokenizer.json", "\"post_processor\": null", &cls);
    assert_refused(&folder, "1 are special");
}

#[test]
fn a_token_that_the_encoder_has_not_is_refused_at_the_start() {
    let folder = folder("token");
    edit(&folder, "tokenizer.json", "\"the\": 1", "\"the\": 1, \"of\": 2");
    assert_refused(&folder, "vocab_size 2, found id 2");
}

#[test]
fn the_fingerprint_depends_on_every_file() {
    let fingerprint = |folder: &Path| open(folder).expect("an encoder").fingerprint().to_owned();
    let original = fingerprint(&folder("original"));
    assert_eq!((original.len(), &original), (32, &fingerprint(&folder("the-same"))));
    for (name, from, to) in [
        ("config.json", "\"n_heads\": 1", "\"n_heads\": 2"),
        ("config.json", "\"gelu\"", "\"relu\""),
        ("tokenizer.json", "\"Whitespace\"", "\"WhitespaceSplit\""),
    ] {
        let folder = folder("changed");
        edit(&folder, name, from, to);
        assert_ne!(fingerprint(&folder), original, "{to}");
    }
    let shorter = folder("shorter");
    let sentence = shorter.join("sentence_bert_config.json");
    fs::write(sentence, "{\"max_seq_length\": 1}").expect("written");
    assert_ne!(fingerprint(&shorter), original);
    let other = folder("weights");
    let weights = other.join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("read");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(weights, bytes).expect("written");
    assert_ne!(fingerprint(&other), original);
}

#[test]
fn weights_are_refused_in_one_line_if_their_sums_are_not_finite_or_names_have_line_breaks() {
    let folder = folder("damaged");
    let file = folder.join("model.safetensors");
    let bytes = fs::read(&file).expect("read");
    let mut large = bytes.clone();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    large[header..].as_chunks_mut::<4>().0.fill(3e38_f32.to_le_bytes());
    fs::write(&file, large).expect("written");
    assert_refused(&folder, "not finite");
    let header = br#"{"a\nb": {"dtype": "F32\n9", "shape": [1], "data_offsets": [0, 8]}}"#;
    let named = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
    fs::write(&file, named).expect("written");
    assert_refused(&folder, "F32\\n9");
}
