//! Changes of a request's body on its way to Dynamo.

use serde_json::value::to_raw_value;

use crate::hints::Hints;
use crate::members::{Members, get, object};

/// A body as it was read.
#[derive(Debug, Default)]
pub struct Rewritten {
    /// Name of the model.
    pub model: Option<String>,
    /// The longest answer that the client asked for.
    pub max_tokens: Option<u32>,
    /// The body to send; `None` if nothing changes.
    pub body: Option<Vec<u8>>,
}

/// `body`, sent to `path`, with the predicted length as `nvext.agent_hints.osl`, and for streamed
/// completions with the wish for `engine_data`, in which heartbeats come: Dynamo drops events
/// without content before it looks at its clock. What cannot be read is for Dynamo to refuse.
pub fn rewrite(path: &str, body: &[u8], hints: Option<&Hints>) -> Rewritten {
    let Ok(mut members) = serde_json::from_slice::<Members>(body) else {
        return Rewritten::default();
    };
    let is_chat = path.ends_with("/chat/completions");
    let max_tokens = max_tokens(&members, is_chat);
    let is_hinted = hints.and_then(|hints| add_hint(&mut members, hints, max_tokens)).is_some();
    let asks = !is_chat && get(&members, "stream") == Some(true);
    let is_asking = asks && ask_for_heartbeats(&mut members).is_some();
    Rewritten {
        model: get(&members, "model"),
        max_tokens,
        body: (is_hinted || is_asking).then(|| serde_json::to_vec(&members).ok()).flatten(),
    }
}

/// The limit that Dynamo takes: only chats have the newer name.
fn max_tokens(members: &Members, is_chat: bool) -> Option<u32> {
    let newer = is_chat.then(|| get(members, "max_completion_tokens")).flatten();
    newer.or_else(|| get(members, "max_tokens"))
}

/// Adds the predicted length, unless the client gave one.
fn add_hint(members: &mut Members, hints: &Hints, max_tokens: Option<u32>) -> Option<()> {
    let mut nvext = object(members, "nvext")?;
    let mut agent_hints = object(&nvext, "agent_hints")?;
    if agent_hints.get("osl").is_some_and(|hint| hint.get() != "null") {
        return None;
    }
    let tokens = hints.predict(members, max_tokens)?;
    agent_hints.insert("osl".into(), to_raw_value(&tokens).ok()?);
    nvext.insert("agent_hints".into(), to_raw_value(&agent_hints).ok()?);
    members.insert("nvext".into(), to_raw_value(&nvext).ok()?);
    Some(())
}

fn ask_for_heartbeats(members: &mut Members) -> Option<()> {
    const FIELD: &str = "engine_data";
    let mut nvext = object(members, "nvext")?;
    let mut fields: Vec<String> = match nvext.get("extra_fields") {
        Some(fields) => serde_json::from_str::<Option<_>>(fields.get()).ok()?.unwrap_or_default(),
        None => Vec::new(),
    };
    if fields.iter().any(|field| field == FIELD) {
        return None;
    }
    fields.push(FIELD.into());
    nvext.insert("extra_fields".into(), to_raw_value(&fields).ok()?);
    members.insert("nvext".into(), to_raw_value(&nvext).ok()?);
    Some(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};
    use trail_scheduler::rng::Rng;

    use super::*;

    fn change(path: &str, body: Value, hints: Option<&Hints>) -> Option<Value> {
        let changed = rewrite(path, body.to_string().as_bytes(), hints).body?;
        let changed: Value = serde_json::from_slice(&changed).expect("JSON");
        assert_eq!(changed["model"], body["model"], "the rest is as it was");
        Some(changed)
    }

    fn hints() -> Hints {
        Hints::load(Path::new("../../../assets/demo")).expect("the bundled model")
    }

    #[test]
    fn predictions_depend_on_the_prompt() {
        let hints = hints();
        let ask = |text: &str| {
            let messages = json!([{"role": "user", "content": text}]);
            let body = json!({"model": "m", "messages": messages});
            let changed = change("/v1/chat/completions", body, Some(&hints)).expect("a hint");
            changed.pointer("/nvext/agent_hints/osl").and_then(Value::as_u64).expect("a number")
        };
        let prompts = [
            "Show a table of each animal for Zoe.",
            "Show the table of 9 from 1 to 16.",
            "I want a story about a dark duck named Zoe.",
            "Make a talk of Ann and Sue about bells.",
            "Copy the line 'Leo has a gold ball' 5 times.",
        ];
        let mut lengths = prompts.map(ask);
        lengths.sort_unstable();
        assert!(lengths[4] > lengths[0] + lengths[0] / 2, "{lengths:?}");
        assert!(lengths[4] < 1000, "{lengths:?}");
    }

    #[test]
    fn a_hint_of_the_client_and_what_cannot_be_read_stay() {
        let hints = hints();
        let of = |body| change("/v1/completions", body, Some(&hints));
        assert_eq!(of(json!({"prompt": "a", "nvext": {"agent_hints": {"osl": 3}}})), None);
        assert_eq!(of(json!({"messages": [{"role": "user", "content": [1]}]})), None);
        assert_eq!(of(json!({"prompt": {"a": 1}})), None);
        assert_eq!(rewrite("/v1/completions", b"{", Some(&hints)).body, None);
        let capped = of(json!({"prompt": [1, 2, 3], "max_tokens": 2})).expect("a hint");
        assert!(capped["nvext"]["agent_hints"]["osl"].as_u64().expect("a number") <= 2);
    }

    #[test]
    fn streamed_completions_ask_for_heartbeats() {
        let body = json!({"model": "m", "prompt": "a", "stream": true});
        let asked = change("/v1/completions", body.clone(), None).expect("is changed");
        assert_eq!(asked["nvext"]["extra_fields"], json!(["engine_data"]));
        assert_eq!(change("/v1/chat/completions", body, None), None, "a chat needs none");
        let fields = json!({"prompt": "a", "stream": true, "nvext": {"extra_fields": ["timing"]}});
        let asked = change("/v1/completions", fields, None).expect("is changed");
        assert_eq!(asked["nvext"]["extra_fields"], json!(["timing", "engine_data"]));
    }

    #[test]
    fn the_newer_name_of_the_limit_wins_in_chats() {
        let of = |path, body: &str| rewrite(path, body.as_bytes(), None).max_tokens;
        let both = r#"{"max_tokens": 5, "max_completion_tokens": 6}"#;
        assert_eq!(of("/v1/chat/completions", r#"{"max_tokens": 5}"#), Some(5));
        assert_eq!(of("/v1/chat/completions", both), Some(6));
        assert_eq!(of("/v1/completions", both), Some(5), "Dynamo takes no other there");
        assert_eq!(of("/v1/completions", r#"{"messages": []}"#), None);
        assert_eq!(of("/v1/completions", "no json"), None);
    }

    #[test]
    fn a_hint_is_capped_by_the_newer_name_too() {
        let hints = hints();
        let messages = json!([{"role": "user", "content": "Tell me a story about a cat."}]);
        let body = json!({"messages": messages, "max_completion_tokens": 3});
        let changed = change("/v1/chat/completions", body, Some(&hints)).expect("a hint");
        assert_eq!(changed["nvext"]["agent_hints"]["osl"], 3);
    }

    #[test]
    fn a_prompt_that_no_context_holds_is_not_tokenized() {
        let hints = hints();
        let of = |body| change("/v1/completions", body, Some(&hints));
        assert_eq!(of(json!({"prompt": "a".repeat(4 << 20)})), None);
        assert_eq!(of(json!({"prompt": vec![1; 1 << 20]})), None);
    }

    /// `text` with a few bytes changed, left out or repeated.
    fn damaged(text: &str, rng: &mut Rng) -> Vec<u8> {
        const BYTES: &[u8] = b"{}[]\",:0e-n\\\xff";
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] = BYTES[rng.below(BYTES.len() as u64) as usize],
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, bytes[at]),
                _ => bytes.truncate(at.max(9)),
            }
        }
        bytes
    }

    #[test]
    fn whatever_the_bytes_are_a_changed_body_differs_in_nvext_alone() {
        let (hints, mut rng) = (hints(), Rng::new(3));
        let bodies = [
            r#"{"model": "m", "prompt": "Tell \u00e9", "stream": true, "max_tokens": 5}"#,
            r#"{"prompt": [1, 2, 3], "stream": true, "nvext": {"extra_fields": ["timing"]}}"#,
            r#"{"messages": [{"role": "user", "content": "Hi"}], "nvext": {"agent_hints": null}}"#,
        ];
        let mut changed = 0;
        for _ in 0..3000 {
            let body = damaged(bodies[rng.below(3) as usize], &mut rng);
            let path = ["/v1/completions", "/v1/chat/completions"][rng.below(2) as usize];
            let Some(after) = rewrite(path, &body, Some(&hints)).body else { continue };
            let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
            let [mut before, mut after] = [read(&body), read(&after)];
            assert_ne!(before, after);
            [&mut before, &mut after].into_iter().for_each(|body| body["nvext"] = Value::Null);
            assert_eq!(before, after);
            changed += 1;
        }
        assert!(changed > 500, "{changed}");
    }
}
