//! Calls that an answer must have (`tool_choice` `required`, or a tool's name): the grammar that
//! every such answer follows.

use trail_grammar::WHITESPACE;
use trail_runtime::text::OrderedJson;

use super::ToolFormat;
use super::keyword_rules::keyword_arguments;
use crate::tools::{Tool, ToolChoice, Tools};

/// The calls of `tools` that an answer must have, in `format`, as a grammar in llguidance's dialect
/// of Lark; `None` if it need not have any.
///
/// `token` gives the id of a text that is a special token: a grammar's
/// strings do not match those.
///
/// # Errors
///
/// A tool's parameters cannot be written in this format.
pub(crate) fn forced(
    format: ToolFormat,
    tools: &Tools,
    token: &dyn Fn(&str) -> Option<u32>,
) -> Result<Option<String>, String> {
    let Tools { list, choice, parallel } = tools;
    let tools: Vec<&Tool> = match choice {
        ToolChoice::Auto | ToolChoice::None => return Ok(None),
        ToolChoice::Required => list.iter().collect(),
        ToolChoice::Named(name) => list.iter().filter(|tool| tool.name == *name).collect(),
    };
    // gpt-oss ends an answer with a call.
    let repeats = *parallel && *choice == ToolChoice::Required && format != ToolFormat::Harmony;
    let terminal = |text: &str| match token(text) {
        Some(id) => format!("<[{id}]>"),
        None => quoted(text),
    };
    let mut lark = Lark(String::new());
    let (open, separator, close) = match format {
        ToolFormat::Hermes => (String::new(), quoted("\n"), String::new()),
        ToolFormat::Harmony => Default::default(),
        ToolFormat::Llama3Json => (String::new(), quoted("; "), String::new()),
        ToolFormat::Pythonic => (quoted("["), quoted(", "), quoted("]")),
        ToolFormat::Mistral => {
            let open = format!("{} {}", terminal("[TOOL_CALLS]"), quoted(" ["));
            (open, quoted(", "), quoted("]"))
        }
        ToolFormat::Text => return Err("calls of tools stay text on this server".into()),
    };
    let calls = if repeats { format!("call ({separator} call)*") } else { "call".to_owned() };
    lark.rule("start", &format!("{open} {calls} {close}"));
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
    lark.rule("call", &names.join(" | "));
    for (at, tool) in tools.iter().enumerate() {
        let call = match format {
            ToolFormat::Pythonic => keyword_arguments(&mut lark, at, tool)?,
            ToolFormat::Harmony => format!(
                "{} {} {} {}",
                terminal("<|channel|>"),
                quoted(&format!("commentary to=functions.{}", tool.name)),
                terminal("<|message|>"),
                json(tool)
            ),
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
    Ok(Some(lark.0))
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

/// The arguments of `tool` as a schema within a grammar, with the whitespace of other schemas.
fn json(tool: &Tool) -> String {
    let mut schema = tool.schema();
    if let OrderedJson::Object(members) = &mut schema {
        let options = [("whitespace_pattern".to_owned(), OrderedJson::Text(WHITESPACE.into()))];
        let options = OrderedJson::Object(options.into_iter().collect());
        members.insert("x-guidance".to_owned(), options);
    }
    format!("%json {schema}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use trail_grammar::{GrammarCompiler, GrammarSpec};
    use trail_runtime::model::Model;
    use trail_runtime::text::Tokenizer;

    use super::*;

    const TOOLS: &str = r##"[{"type": "function", "function": {"name": "get_weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/n"}},
         "required": ["city"], "$defs": {"n": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "f"}}]"##;
    const FORMATS: [ToolFormat; 5] = [
        ToolFormat::Hermes,
        ToolFormat::Llama3Json,
        ToolFormat::Pythonic,
        ToolFormat::Mistral,
        ToolFormat::Harmony,
    ];

    fn tools(choice: ToolChoice) -> Tools {
        Tools { list: serde_json::from_str(TOOLS).expect("tools"), choice, parallel: true }
    }

    fn compiler() -> GrammarCompiler {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
        let config = Model::load(&path).expect("the bundled model").config;
        let tokenizer = Tokenizer::load(&path, config.vocab_size).expect("its tokenizer");
        GrammarCompiler::new(Arc::new(tokenizer), &config)
    }

    /// Each grammar of each format, by texts and by special tokens; all compile.
    #[test]
    fn each_format_has_its_grammar() {
        let (mut found, compiler) = (String::new(), compiler());
        let named = |name: &str| ToolChoice::Named(name.into());
        let special = ["<tool_call>", "[TOOL_CALLS]"];
        let tokens = |text: &str| special.contains(&text).then_some(7u32);
        for format in FORMATS {
            for choice in [ToolChoice::Required, named("f")] {
                let tools = tools(choice);
                for token in [&|_: &str| None, &tokens as &dyn Fn(&str) -> Option<u32>] {
                    let forced = forced(format, &tools, token).expect("a grammar");
                    let lark = forced.expect("a forced call");
                    found.extend([&format!("== {format} {:?}\n", tools.choice), &*lark]);
                    let compiled = compiler.compile(&GrammarSpec::Lark(lark));
                    assert_eq!(compiled.err(), None, "{format} {:?}", tools.choice);
                }
            }
        }
        let golden = include_str!("../../golden/forced_calls.txt");
        assert_eq!(found, golden, "{found}");
    }

    #[test]
    fn other_choices_force_nothing_and_odd_parameters_are_named() {
        for choice in [ToolChoice::Auto, ToolChoice::None] {
            let found = forced(ToolFormat::Hermes, &tools(choice), &|_| None);
            assert_eq!(found, Ok(None));
        }
        let text = r#"[{"type": "function", "function": {"name": "f", "parameters":
            {"type": "object", "properties": {"a-b": {}}}}}]"#;
        let list = serde_json::from_str(text).expect("tools");
        let odd = Tools { list, choice: ToolChoice::Required, parallel: false };
        let error = forced(ToolFormat::Pythonic, &odd, &|_| None).expect_err("refused");
        assert_eq!(error, "the parameter 'a-b' of 'f' is no name in Python");
        assert!(forced(ToolFormat::Text, &odd, &|_| None).is_err());
    }
}
