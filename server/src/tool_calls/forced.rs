//! Calls that an answer must have (`tool_choice` `required`, or a tool's name): the schema of their
//! arguments, and a grammar of llguidance that every such answer follows.

use trail_runtime::text::{OrderedJson, OrderedMembers};

use super::ToolFormat;
use super::keyword_rules::keyword_arguments;
use crate::tools::{Tool, ToolChoice, Tools};

/// What a forced call must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forced {
    /// JSON schema of the arguments; with several tools, `anyOf` of objects with name and
    /// arguments.
    pub schema: OrderedJson,
    /// The answer as a grammar in llguidance's dialect of Lark.
    pub lark: String,
}

/// The call of `tools` that an answer must have, in `format`; `None` if it need not have one.
///
/// `thinks` if the answer begins in its reasoning,
/// which then may be any text. `token` gives the id of a text that is a special token: a grammar's
/// strings do not match those.
///
/// # Errors
///
/// A tool's parameters cannot be written in this format.
pub(crate) fn forced(
    format: ToolFormat,
    tools: &Tools,
    thinks: bool,
    token: &dyn Fn(&str) -> Option<u32>,
) -> Result<Option<Forced>, String> {
    let Tools { list, choice, parallel } = tools;
    let tools: Vec<&Tool> = match choice {
        ToolChoice::Auto | ToolChoice::None => return Ok(None),
        ToolChoice::Required => list.iter().collect(),
        ToolChoice::Named(name) => list.iter().filter(|tool| tool.name == *name).collect(),
    };
    let repeats = *parallel && *choice == ToolChoice::Required;
    let terminal = |text: &str| match token(text) {
        Some(id) => format!("<[{id}]>"),
        None => quoted(text),
    };
    let mut lark = Lark(String::new());
    let thought = if thinks { "think " } else { "" };
    let (open, separator, close) = match format {
        ToolFormat::Hermes => (String::new(), quoted("\n"), String::new()),
        ToolFormat::Llama3Json => (String::new(), quoted("; "), String::new()),
        ToolFormat::Pythonic => (quoted("["), quoted(", "), quoted("]")),
        ToolFormat::Mistral => {
            let open = format!("{} {}", terminal("[TOOL_CALLS]"), quoted(" ["));
            (open, quoted(", "), quoted("]"))
        }
        ToolFormat::Text => return Err("calls of tools stay text on this server".into()),
    };
    let calls = if repeats { format!("call ({separator} call)*") } else { "call".to_owned() };
    lark.rule("start", &format!("{thought}{open} {calls} {close}"));
    if thinks {
        lark.rule("think", &format!("/(.|\\n)*/ {} /\\s*/", terminal("</think>")));
    }
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
    lark.rule("call", &names.join(" | "));
    for (at, tool) in tools.iter().enumerate() {
        let call = match format {
            ToolFormat::Pythonic => keyword_arguments(&mut lark, at, tool)?,
            _ => {
                let key = if format == ToolFormat::Llama3Json { "parameters" } else { "arguments" };
                let begin = format!("{{\"name\": {}, \"{key}\": ", quoted(&tool.name));
                let object = format!("{} {} {}", quoted(&begin), json(tool), quoted("}"));
                match format {
                    ToolFormat::Hermes => format!(
                        "{} {} {object} {} {}",
                        terminal("<tool_call>"),
                        quoted("\n"),
                        quoted("\n"),
                        terminal("</tool_call>")
                    ),
                    _ => object,
                }
            }
        };
        lark.rule(&format!("call_{at}"), &call);
    }
    Ok(Some(Forced { schema: schema(&tools), lark: lark.0 }))
}

/// Rules of a grammar.
pub(super) struct Lark(String);

impl Lark {
    /// Adds the rule `name`.
    pub(super) fn rule(&mut self, name: &str, expansion: &str) {
        self.0.extend([name, ": ", expansion.trim(), "\n"]);
    }
}

/// `text` as a string of Lark's, whose escapes are those of JSON.
pub(super) fn quoted(text: &str) -> String {
    OrderedJson::Text(text.to_owned()).to_string()
}

/// The arguments of `tool` as a schema within a grammar.
fn json(tool: &Tool) -> String {
    format!("%json {}", tool.schema())
}

fn schema(tools: &[&Tool]) -> OrderedJson {
    if let [tool] = tools {
        return tool.schema();
    }
    let object = |members: Vec<(&str, OrderedJson)>| {
        let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
        OrderedJson::Object(members.collect::<OrderedMembers>())
    };
    let text = |text: &str| OrderedJson::Text(text.to_owned());
    let call = |tool: &&Tool| {
        let name = object(vec![("const", text(&tool.name))]);
        let members = object(vec![("name", name), ("arguments", tool.schema())]);
        let required = OrderedJson::List(vec![text("name"), text("arguments")]);
        object(vec![("type", text("object")), ("properties", members), ("required", required)])
    };
    object(vec![("anyOf", OrderedJson::List(tools.iter().map(call).collect()))])
}
