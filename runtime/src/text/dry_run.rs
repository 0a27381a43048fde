//! Typical conversations, rendered when a template is loaded: what it cannot do is known before the
//! first request.

use trail_platform::quote::escape;

use super::chat::{ChatError, ChatMessage, ChatTemplate};

/// A word that no template changes.
const WORD: &str = "Zephyr";

const TOOL_RESULT: &str = "a tool's result";

/// Properties of conversations, and their messages. Those that show it have [`WORD`].
const CONVERSATIONS: [(&str, &[(&str, &str)]); 5] = [
    ("a user's message", &[("user", WORD)]),
    ("earlier turns", &[("user", WORD), ("assistant", "Yes."), ("user", "Why?")]),
    ("a system message", &[("system", WORD), ("user", "Hi.")]),
    ("two messages of a user in a row", &[("user", WORD), ("user", "Hi.")]),
    (TOOL_RESULT, &[("user", "Hi."), ("assistant", "Let me see."), ("tool", WORD)]),
];

/// Returns the limits of `template`, a phrase each.
///
/// # Errors
///
/// It renders no conversation at all; the reason of the first.
pub(super) fn limits(template: &ChatTemplate) -> Result<Vec<String>, ChatError> {
    let mut limits = template.missing();
    let (mut first, mut is_usable) = (None, false);
    for (what, turns) in CONVERSATIONS {
        let turn = |&(role, content): &(&str, &str)| ChatMessage::new(role, content);
        let messages: Vec<ChatMessage> = turns.iter().map(turn).collect();
        match template.render(&messages, true) {
            Ok(text) if text.contains(WORD) => is_usable = true,
            Ok(_) => {
                is_usable = true;
                // Servers take no calls of tools: their results are rare.
                if what != TOOL_RESULT {
                    limits.push(format!("leaves out {what}"));
                }
            }
            // Each of the others could take as long.
            Err(error @ ChatError::Exceeds { .. }) if !is_usable => return Err(error),
            Err(error) => {
                let reason = match &error {
                    ChatError::Render(reason) => escape(reason),
                    other => other.to_string(),
                };
                limits.push(format!("refuses {what}: {reason}"));
                first = first.or(Some(error));
            }
        }
    }
    match first {
        Some(error) if !is_usable => Err(error),
        _ => Ok(limits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits_of(source: &str) -> Result<Vec<String>, String> {
        let template = ChatTemplate::new(Some(source.into()), "<s>".into(), "</s>".into());
        limits(&template.expect("a template")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_template_cannot_do_is_a_phrase() {
        let plain = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}";
        assert!(limits_of(plain).expect("usable").is_empty());
        let strict = "{% for m in messages %}{% if m.role == 'system' %}\
            {{ raise_exception('no\\nsystem role') }}{% elif (m.role == 'user') != (loop.index0 % 2 == 0) %}\
            {{ raise_exception('turns must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
        assert_eq!(
            limits_of(strict).expect("usable"),
            [
                "refuses a system message: no\\nsystem role",
                "refuses two messages of a user in a row: turns must alternate",
                "refuses a tool's result: turns must alternate"
            ]
        );
        let last = limits_of("{{ messages[-1].content }}").expect("usable");
        assert_eq!(
            last,
            ["earlier turns", "a system message", "two messages of a user in a row"]
                .map(|what| format!("leaves out {what}"))
        );
        let filter = "{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}\
            {{ m.content | urlize }}{% endif %}{% endfor %}{{ 'a'.isprintable() if false }}";
        let found = limits_of(filter).expect("usable");
        assert_eq!(found[0], "uses the filter urlize, which trail-rt does not have");
        assert_eq!(found[1], "uses the method isprintable, which trail-rt does not have");
        assert!(found[2].starts_with("refuses a system message: unknown filter"), "{found:?}");
    }

    #[test]
    fn a_template_without_any_conversation_is_an_error() {
        let error = limits_of("{{ raise_exception('never') }}").unwrap_err();
        assert_eq!(error, "the chat template failed: never");
        let endless =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        assert!(limits_of(endless).unwrap_err().contains("instructions"));
    }
}
