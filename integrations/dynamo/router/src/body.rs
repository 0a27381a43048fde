//! Changes of a request's body on its way to Dynamo.

use serde_json::{Map, Value, json};

use crate::hints::Hints;

/// `body`, sent to `path`, with the predicted length as `nvext.agent_hints.osl`, and for streamed
/// completions with the wish for `engine_data`, in which heartbeats come: Dynamo drops events
/// without content before it looks at its clock. `None` if nothing changes; what cannot be read is
/// for Dynamo to refuse.
pub fn rewrite(path: &str, body: &[u8], hints: Option<&Hints>) -> Option<Vec<u8>> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    let is_hinted = hints.and_then(|hints| add_hint(&mut body, hints)).is_some();
    let is_stream = body.get("stream").and_then(Value::as_bool).unwrap_or(false);
    let asks = !path.ends_with("/chat/completions") && is_stream;
    let is_asking = asks && ask_for_heartbeats(&mut body).is_some();
    (is_hinted || is_asking).then(|| serde_json::to_vec(&body).ok()).flatten()
}

/// Adds the predicted length, unless the client gave one.
fn add_hint(body: &mut Value, hints: &Hints) -> Option<()> {
    if body.pointer("/nvext/agent_hints/osl").is_some_and(|hint| !hint.is_null()) {
        return None;
    }
    let tokens = hints.predict(body)?;
    object(body, &["nvext", "agent_hints"])?.insert("osl".into(), tokens.into());
    Some(())
}

fn ask_for_heartbeats(body: &mut Value) -> Option<()> {
    let fields = object(body, &["nvext"])?.entry("extra_fields").or_insert_with(|| json!([]));
    let fields = fields.as_array_mut()?;
    if !fields.iter().any(|field| field == "engine_data") {
        fields.push("engine_data".into());
    }
    Some(())
}

/// The object at `path`, made where it is missing; `None` where something else is in its place.
fn object<'a>(body: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    path.iter().try_fold(body.as_object_mut()?, |at, name| {
        at.entry(*name).or_insert_with(|| json!({})).as_object_mut()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn change(path: &str, body: Value, hints: Option<&Hints>) -> Option<Value> {
        let changed = rewrite(path, body.to_string().as_bytes(), hints)?;
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
        assert_eq!(rewrite("/v1/completions", b"{", Some(&hints)), None);
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
}
