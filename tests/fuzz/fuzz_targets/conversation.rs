//! A chat template and the variables of a conversation as JSON, with a zero byte between: refused
//! in one line, or rendered within the limits of time and memory. Seeds are text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_runtime::text::{ChatTemplate, OrderedMembers};

const CONVERSATION: &str = r#"{"messages": [{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<a> \u00e9 'x' \"y\"\n"}, {"role": "assistant", "content": "",
    "tool_calls": [{"function": {"name": "f", "arguments": {"k": [1, 2.5, true, null]}}}]},
    {"role": "tool", "content": "7"}], "tools": [{"function": {"name": "f", "parameters":
    {"properties": {"k": {"type": "array"}}}}}], "add_generation_prompt": true}"#;

fuzz_target!(|text: &str| {
    let (source, json) = text.split_once('\0').unwrap_or((text, CONVERSATION));
    let conversation: OrderedMembers = serde_json::from_str(json).unwrap_or_default();
    let template = ChatTemplate::new(Some(source.into()), "<s>".into(), "</s>".into());
    match template.and_then(|template| template.render_json(&conversation)) {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
        Ok(text) => assert!(text.len() <= 64 << 20),
    }
});
