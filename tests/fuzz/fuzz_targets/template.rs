//! Any text as a chat template, over any messages: refused in one line, or rendered within the
//! limits of time and memory.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use trail_runtime::text::{ChatMessage, ChatTemplate};

#[derive(Arbitrary, Debug)]
struct Input {
    template: String,
    messages: Vec<(bool, String)>,
    prompt: bool,
}

fuzz_target!(|input: Input| {
    let message = |(is_user, content): (bool, String)| {
        ChatMessage::new(if is_user { "user" } else { "assistant" }, content)
    };
    let messages: Vec<ChatMessage> = input.messages.into_iter().map(message).collect();
    let template = ChatTemplate::new(Some(input.template), "<s>".into(), "</s>".into());
    let rendered = template.and_then(|template| template.render(&messages, input.prompt));
    if let Err(error) = rendered {
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
});
