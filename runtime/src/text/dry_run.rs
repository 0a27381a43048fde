//! Typical conversations, rendered when a template is loaded: what it cannot do is known before the
//! first request.

use serde_json::{Value, json};
use trail_platform::quote::escape;

use super::chat::{ChatMessage, ChatTemplate};
use super::chat_error::ChatError;
use super::ordered_json::OrderedMembers;

/// A word that no template changes.
const WORD: &str = "Zephyr";

const TOOL_RESULT: &str = "a tool's result";

/// The form of a message with calls of tools, where a template does not take transformers': an
/// object of arguments, and no content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallForm {
    /// The arguments are text.
    pub text_arguments: bool,
    /// A content that is absent is empty.
    pub empty_content: bool,
}

/// Properties of conversations, and their messages. Those that show it have [`WORD`].
const CONVERSATIONS: [(&str, &[(&str, &str)]); 5] = [
    ("a user's message", &[("user", WORD)]),
    ("earlier turns", &[("user", WORD), ("assistant", "Yes."), ("user", "Why?")]),
    ("a system message", &[("system", WORD), ("user", "Hi.")]),
    ("two messages of a user in a row", &[("user", WORD), ("user", "Hi.")]),
    (TOOL_RESULT, &[]),
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
        let rendered = match what {
            TOOL_RESULT => tool_result(template, call_form(template)),
            _ => {
                let turn = |&(role, content): &(&str, &str)| ChatMessage::new(role, content);
                template.render(&turns.iter().map(turn).collect::<Vec<_>>(), true)
            }
        };
        match rendered {
            Ok(text) if text.contains(WORD) => is_usable = true,
            Ok(_) => {
                is_usable = true;
                // Without tools there are no results.
                if what != TOOL_RESULT || shows_tools(template) {
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

/// Renders a conversation of JSON.
fn render(template: &ChatTemplate, messages: &Value, tools: &Value) -> Result<String, ChatError> {
    let conversation =
        json!({ "messages": messages, "tools": tools, "add_generation_prompt": true });
    let members: OrderedMembers = serde_json::from_value(conversation).unwrap_or_default();
    template.render_json(&members)
}

/// True if `template` writes the tools that it is given.
pub(super) fn shows_tools(template: &ChatTemplate) -> bool {
    let parameters = json!({ "type": "object", "properties": {}, "required": [] });
    let function = json!({ "name": WORD, "description": "A tool.", "parameters": parameters });
    let tools = json!([{ "type": "function", "function": function }]);
    let user = json!({ "role": "user", "content": "Hi." });
    let system = json!({ "role": "system", "content": "Be brief." });
    [json!([user]), json!([system, user])]
        .iter()
        .any(|messages| render(template, messages, &tools).is_ok_and(|text| text.contains(WORD)))
}

/// The form in which `template` takes messages with calls: the first one that it renders.
pub(super) fn call_form(template: &ChatTemplate) -> CallForm {
    let forms = [(false, false), (false, true), (true, false), (true, true)];
    let forms =
        forms.map(|(text_arguments, empty_content)| CallForm { text_arguments, empty_content });
    // Python's name of an absent content is no text of a prompt.
    let takes =
        |form: &CallForm| tool_result(template, *form).is_ok_and(|text| !text.contains("None"));
    forms.into_iter().find(takes).unwrap_or_default()
}

/// A call of a tool and its result, which is [`WORD`].
fn tool_result(template: &ChatTemplate, form: CallForm) -> Result<String, ChatError> {
    // The only form of ids that Mistral's templates take.
    let id = "a1b2c3d4e";
    let arguments = if form.text_arguments { json!("{\"a\": 1}") } else { json!({ "a": 1 }) };
    let function = json!({ "name": "f", "arguments": arguments });
    let call = json!({ "id": id, "type": "function", "function": function });
    let content = if form.empty_content { json!("") } else { Value::Null };
    let messages = json!([
        { "role": "user", "content": "Hi." },
        { "role": "assistant", "content": content, "tool_calls": [call] },
        { "role": "tool", "content": WORD, "tool_call_id": id },
    ]);
    render(template, &messages, &Value::Null)
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
    fn the_forms_of_tools_and_calls_are_those_that_render() {
        let template = |turn: &str| {
            let source = format!("{{% for m in messages %}}{turn}{{% endfor %}}");
            let template = ChatTemplate::new(Some(source), "<s>".into(), "</s>".into());
            template.expect("a template")
        };
        let plain = template("{{ m.content }}");
        assert!(!shows_tools(&plain));
        assert!(!shows_tools(&template("{% if tools %}{{ m.content }}{% endif %}")));
        assert!(shows_tools(&template("{{ tools | tojson }}{{ m.content }}")));
        let form = |text_arguments, empty_content| CallForm { text_arguments, empty_content };
        // It would write Python's `None`.
        assert_eq!(call_form(&plain), form(false, true));
        assert_eq!(call_form(&template("{{ m.content or '' }}")), form(false, false));
        let text = "{% for c in m.tool_calls or [] %}{{ 'x' + c.function.arguments }}{% endfor %}";
        assert_eq!(call_form(&template(text)), form(true, false));
        let both = format!("{{{{ '' + m.content }}}}{text}");
        assert_eq!(call_form(&template(&both)), form(true, true));
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
