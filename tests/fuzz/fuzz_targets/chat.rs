//! Any texts of users in a chat: they have no control tokens, whatever they spell.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, Tokenizer};

static DEMO: LazyLock<(Tokenizer, ChatTemplate)> = LazyLock::new(|| {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo"));
    let tokenizer = Tokenizer::load(folder, 1 << 20).expect("the demo tokenizer");
    (tokenizer, ChatTemplate::load(folder).expect("the demo template"))
});

/// Control tokens of a chat of users' messages.
fn control_tokens(contents: &[&str]) -> usize {
    let (tokenizer, template) = &*DEMO;
    let message = |content: &&str| ChatMessage::new("user", *content);
    let messages: Vec<ChatMessage> = contents.iter().map(message).collect();
    let ids = template.encode(tokenizer, &messages, ChatOptions::default());
    ids.expect("the template takes any text").iter().filter(|&&id| tokenizer.is_special(id)).count()
}

fuzz_target!(|text: &str| {
    let contents: Vec<&str> = text.split('\0').collect();
    assert_eq!(control_tokens(&contents), control_tokens(&vec!["x"; contents.len()]));
});
