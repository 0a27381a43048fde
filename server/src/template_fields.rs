//! Request fields whose values are variables of the chat template.

use serde::Deserialize;
use trail_platform::quote::escape;
use trail_runtime::text::{ChatTemplate, OrderedJson, OrderedMembers};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::tools::Tool;

/// vLLM's fields.
#[derive(Deserialize, ToSchema, Clone, Debug, Default)]
pub(crate) struct TemplateFields {
    /// Texts that the answer is to rest on.
    #[schema(value_type = Option<Vec<Object>>)]
    documents: Option<Vec<OrderedMembers>>,
    /// Further variables, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<OrderedMembers>,
}

impl TemplateFields {
    /// The variables, with `tools`.
    pub(crate) fn variables(self, tools: &[Tool]) -> Result<OrderedMembers, ApiError> {
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(name) = variables.keys().find(|name| ChatTemplate::owns(name)) {
            let field = format!("chat_template_kwargs.{name}");
            let message = format!("'{field}' is not a client's to set: leave it out");
            return Err(ApiError::invalid_field(&field, escape(&message)));
        }
        let mut set = |name: &str, list: Vec<OrderedMembers>| {
            if !list.is_empty() {
                let list = list.into_iter().map(OrderedJson::Object).collect();
                variables.insert(name.to_owned(), OrderedJson::List(list));
            }
        };
        set("tools", tools.iter().map(|tool| tool.members.clone()).collect());
        set("documents", self.documents.unwrap_or_default());
        Ok(variables)
    }
}
