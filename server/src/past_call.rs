//! Calls of tools in the messages of a request.

use serde::de::{Deserialize, Deserializer, Error};
use trail_runtime::text::{CallForm, OrderedJson, OrderedMembers};

use crate::number::integer_beyond_64_bits;

/// A call of a tool that an earlier answer had.
#[derive(Clone, Debug)]
pub(crate) struct PastCall {
    /// As in OpenAI's chats; the arguments are an object.
    members: OrderedMembers,
    /// The arguments as the client wrote them.
    text: Option<String>,
}

impl PastCall {
    /// The call `id` of the tool `name`.
    pub(crate) fn new(id: &str, name: &str, arguments: OrderedMembers) -> Self {
        let text = |text: &str| OrderedJson::Text(text.to_owned());
        let function = [("name", text(name)), ("arguments", OrderedJson::Object(arguments))];
        let function = function.map(|(name, value)| (name.to_owned(), value));
        let function = OrderedJson::Object(function.into_iter().collect());
        let members = [("id", text(id)), ("type", text("function")), ("function", function)];
        let members = members.map(|(name, value)| (name.to_owned(), value));
        PastCall { members: members.into_iter().collect(), text: None }
    }

    /// The same with the JSON text of `arguments`; an empty one is `{}`.
    ///
    /// # Errors
    ///
    /// They are no object.
    pub(crate) fn of_text(id: &str, name: &str, arguments: &str) -> Result<Self, String> {
        let members = parsed(arguments)?;
        Ok(PastCall { text: Some(arguments.to_owned()), ..PastCall::new(id, name, members) })
    }

    fn from_members(mut members: OrderedMembers) -> Result<Self, String> {
        let Some(OrderedJson::Object(function)) = members.get_mut("function") else {
            return Err("missing field `function`, an object with a name and arguments".into());
        };
        if function.get("name").and_then(OrderedJson::as_text).is_none() {
            return Err("missing field `function.name`, a string".into());
        }
        let (arguments, text) = match function.get("arguments") {
            None | Some(OrderedJson::Null) => (OrderedMembers::new(), None),
            Some(OrderedJson::Object(members)) => (members.clone(), None),
            Some(OrderedJson::Text(text)) => (parsed(text)?, Some(text.clone())),
            Some(_) => return Err("'function.arguments' must be the text of a JSON object".into()),
        };
        function.insert("arguments".into(), OrderedJson::Object(arguments));
        Ok(PastCall { members, text })
    }

    /// The call as a template reads it that takes calls in `form`.
    pub(crate) fn into_json(mut self, form: CallForm) -> OrderedJson {
        if let Some(OrderedJson::Object(function)) =
            self.members.get_mut("function").filter(|_| form.text_arguments)
            && let Some(arguments) = function.get_mut("arguments")
        {
            let text = self.text.unwrap_or_else(|| arguments.to_string());
            *arguments = OrderedJson::Text(text);
        }
        OrderedJson::Object(self.members)
    }
}

fn parsed(text: &str) -> Result<OrderedMembers, String> {
    if text.trim().is_empty() {
        return Ok(OrderedMembers::new());
    }
    if let Some(integer) = integer_beyond_64_bits(text.as_bytes()) {
        let integer: String = integer.chars().take(40).collect();
        return Err(format!(
            "'function.arguments' has the integer {integer} of more than 64 bits: send it as a \
             string"
        ));
    }
    serde_json::from_str(text)
        .map_err(|_| "'function.arguments' must be the text of a JSON object".into())
}

impl<'de> Deserialize<'de> for PastCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members = OrderedMembers::deserialize(deserializer)?;
        PastCall::from_members(members).map_err(D::Error::custom)
    }
}
