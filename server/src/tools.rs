//! The tools of a request.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use trail_runtime::text::{OrderedJson, OrderedMembers, Tokenizer};

use crate::answer_parts::ToolForm;
use crate::error::ApiError;
use crate::served_model::ServedModel;
use crate::tool_calls::{ToolFormat, forced};

/// Tools of one request at the most.
const MAX_TOOLS: usize = 1024;
/// Longest name of a tool, bytes.
pub(crate) const MAX_NAME: usize = 256;

/// A tool: a function with a name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub name: String,
    /// The form that chat templates read: `{"type": "function", "function": {...}}`.
    pub members: OrderedMembers,
}

impl Tool {
    /// JSON schema of the arguments.
    pub(crate) fn schema(&self) -> OrderedJson {
        let function = self.members.get("function").and_then(OrderedJson::as_object);
        let parameters = function.and_then(|function| function.get("parameters"));
        match parameters {
            Some(OrderedJson::Object(members)) if !members.is_empty() => {
                OrderedJson::Object(members.clone())
            }
            _ => {
                let members = [
                    ("type", OrderedJson::Text("object".into())),
                    ("properties", OrderedJson::Object(OrderedMembers::new())),
                    ("additionalProperties", OrderedJson::Bool(false)),
                ];
                let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
                OrderedJson::Object(members.collect())
            }
        }
    }

    /// A tool of the function `function`: its name, description and parameters.
    pub(crate) fn new(function: OrderedMembers) -> Result<Self, String> {
        let name = valid_name(&function)?;
        let members = [
            ("type".to_owned(), OrderedJson::Text("function".into())),
            ("function".to_owned(), OrderedJson::Object(function)),
        ];
        Ok(Tool { name, members: members.into_iter().collect() })
    }
}

/// The name of a function whose members are in order.
fn valid_name(function: &OrderedMembers) -> Result<String, String> {
    let Some(name) = function.get("name").and_then(OrderedJson::as_text) else {
        return Err("missing field `name`, a string".into());
    };
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_part) {
        return Err(format!("a tool's name has 1 to {MAX_NAME} letters, digits, '_', '-' and '.'"));
    }
    match function.get("parameters") {
        None | Some(OrderedJson::Object(_) | OrderedJson::Null) => Ok(name.to_owned()),
        Some(_) => Err(format!("the parameters of '{name}' must be a JSON schema, an object")),
    }
}

/// As in OpenAI's chats.
impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members = object(deserializer)?;
        check_kind::<D::Error>(&members)?;
        let function = members.get("function").and_then(OrderedJson::as_object);
        let missing = || D::Error::custom("missing field `function`, an object with a name");
        let name = valid_name(function.ok_or_else(missing)?).map_err(D::Error::custom)?;
        Ok(Tool { name, members })
    }
}

/// A tool of OpenAI's Responses API: the function's members stand beside the type.
#[derive(Clone, Debug)]
pub(crate) struct FlatTool(pub Tool);

impl<'de> Deserialize<'de> for FlatTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut members = object(deserializer)?;
        check_kind::<D::Error>(&members)?;
        members.shift_remove("type");
        Tool::new(members).map(FlatTool).map_err(D::Error::custom)
    }
}

/// A tool of Anthropic's API.
#[derive(Clone, Debug)]
pub(crate) struct MessageTool(pub Tool);

impl<'de> Deserialize<'de> for MessageTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members = object(deserializer)?;
        match members.get("type").and_then(OrderedJson::as_text) {
            None | Some("custom") => {}
            Some(kind) => {
                let message = format!("a tool of type '{kind}' is not supported: give functions");
                return Err(D::Error::custom(message));
            }
        }
        let name = |name: &str| match name {
            "input_schema" => "parameters".to_owned(),
            name => name.to_owned(),
        };
        let kept = |(key, _): &(String, OrderedJson)| {
            ["name", "description", "input_schema"].contains(&key.as_str())
        };
        let function = members.into_iter().filter(kept).map(|(key, value)| (name(&key), value));
        Tool::new(function.collect()).map(MessageTool).map_err(D::Error::custom)
    }
}

fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OrderedMembers, D::Error> {
    match OrderedJson::deserialize(deserializer)? {
        OrderedJson::Object(members) => Ok(members),
        _ => Err(D::Error::custom("expected an object with a type and a function")),
    }
}

fn check_kind<E: Error>(members: &OrderedMembers) -> Result<(), E> {
    match members.get("type").and_then(OrderedJson::as_text) {
        Some("function") => Ok(()),
        Some(kind) => {
            let message = format!("a tool of type '{kind}' is not supported: give functions");
            Err(E::custom(message))
        }
        None => Err(E::custom("missing field `type`, \"function\"")),
    }
}

/// Which tools an answer may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// Any, or none.
    #[default]
    Auto,
    /// None, and so the model does not see them.
    None,
    /// One at least.
    Required,
    /// The one of this name.
    Named(String),
}

/// `"auto"`, `"none"`, `"required"`, or an object with a type and a name: beside it, within
/// `function`, or Anthropic's (`any` is `required`, `tool` has a name).
impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChoiceVisitor)
    }
}

struct ChoiceVisitor;

impl<'de> Visitor<'de> for ChoiceVisitor {
    type Value = ToolChoice;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("\"auto\", \"none\", \"required\", or a function's name in an object")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<ToolChoice, E> {
        match name {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            other => {
                Err(E::custom(format!("unknown value `{other}`, expected auto, none or required")))
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ToolChoice, A::Error> {
        let mut members = OrderedMembers::new();
        while let Some((name, value)) = map.next_entry::<String, OrderedJson>()? {
            members.insert(name, value);
        }
        let text = |name: &str| members.get(name).and_then(OrderedJson::as_text);
        match text("type") {
            Some("function" | "tool") => {
                let function = members.get("function").and_then(OrderedJson::as_object);
                let within = function.and_then(|function| function.get("name"));
                let name = text("name").or(within.and_then(OrderedJson::as_text));
                let missing = || A::Error::custom("missing field `name`, that of a tool");
                name.map(|name| ToolChoice::Named(name.to_owned())).ok_or_else(missing)
            }
            Some(name @ ("auto" | "none" | "any")) => self.visit_str(name),
            Some(other) => {
                Err(A::Error::custom(format!("'type' '{other}' is not supported: name a function")))
            }
            None => Err(A::Error::custom("missing field `type`")),
        }
    }
}

/// The tools of a request, and which of these its answer may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    pub list: Vec<Tool>,
    pub choice: ToolChoice,
    /// Several calls may be in one answer.
    pub parallel: bool,
}

impl Tools {
    /// These tools, with the format of their calls in an answer of `model`; `None` if the
    /// model is shown none.
    ///
    /// # Errors
    ///
    /// The model's template shows no tools, the form of its calls is not known, or the choice is
    /// none of the tools.
    pub(crate) fn usable(self, model: &ServedModel) -> Result<Option<UsableTools>, ApiError> {
        self.check()?;
        if self.list.is_empty() || self.choice == ToolChoice::None {
            return Ok(None);
        }
        if !model.template.shows_tools() {
            return Err(ApiError::invalid_field(
                "tools",
                "the model's chat template does not show tools: leave 'tools' out, or set \
                 'tool_choice' to \"none\"",
            ));
        }
        let Some(format) = model.tool_format else {
            return Err(ApiError::invalid_field(
                "tools",
                "the form in which this model writes calls is not known: the server needs \
                 --tool-call-parser",
            ));
        };
        Ok(Some(UsableTools { tools: self, format }))
    }

    fn check(&self) -> Result<(), ApiError> {
        let refuse = |field: &str, message: String| Err(ApiError::invalid_field(field, message));
        if self.list.len() > MAX_TOOLS {
            return refuse("tools", format!("there are more than {MAX_TOOLS} tools: give fewer"));
        }
        for (at, tool) in self.list.iter().enumerate() {
            if self.list[..at].iter().any(|other| other.name == tool.name) {
                let name = &tool.name;
                return refuse("tools", format!("'tools[{at}]': the name '{name}' is there twice"));
            }
        }
        match &self.choice {
            ToolChoice::Auto | ToolChoice::None => Ok(()),
            _ if self.list.is_empty() => {
                refuse("tool_choice", "'tool_choice' needs 'tools': give some".into())
            }
            ToolChoice::Named(name) if self.list.iter().all(|tool| tool.name != *name) => {
                refuse("tool_choice", format!("'tool_choice' names '{name}', which is no tool"))
            }
            ToolChoice::Required | ToolChoice::Named(_) => Ok(()),
        }
    }
}

/// Tools that the model is shown, and the format of their calls.
#[derive(Clone, Debug)]
pub(crate) struct UsableTools {
    tools: Tools,
    format: ToolFormat,
}

impl UsableTools {
    /// The tools.
    pub(crate) fn list(&self) -> &[Tool] {
        &self.tools.list
    }

    /// The calls to find in an answer; `None` if they stay text.
    pub(crate) fn form(&self) -> Option<ToolForm> {
        let names = self.list().iter().map(|tool| tool.name.clone()).collect();
        let only_first = !self.tools.parallel;
        (self.format != ToolFormat::Text).then_some(ToolForm {
            format: self.format,
            names,
            only_first,
        })
    }

    /// The grammar (Lark) of the calls that an answer must have, if it must.
    ///
    /// # Errors
    ///
    /// A tool's parameters cannot be written in the model's format.
    pub(crate) fn grammar(&self, tokenizer: &Tokenizer) -> Result<Option<String>, ApiError> {
        let special = |text: &str| tokenizer.token_id(text).filter(|&id| tokenizer.is_special(id));
        let forced = forced(self.format, &self.tools, &special);
        forced.map_err(|why| ApiError::invalid_field("tool_choice", why))
    }
}
