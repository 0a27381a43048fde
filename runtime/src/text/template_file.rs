//! The files of a chat template and its tokens.

use std::path::Path;

use serde_json::Value as Json;

use super::environment::NAME;
use crate::model::LoadError;
use crate::model::fields::Fields;

/// Reads the template of `tokenizer_config.json`: a string, or a list of named templates, where
/// `default` is the one for conversations.
pub(super) fn template_of(fields: &Fields) -> Result<Option<String>, LoadError> {
    let Some(value) = fields.get(NAME) else { return Ok(None) };
    let is_default = |entry: &&Json| entry.get("name").and_then(Json::as_str) == Some("default");
    let source = match value.as_array() {
        None => Some(value),
        Some(named) => named.iter().find(is_default).and_then(|entry| entry.get("template")),
    };
    let source = source.and_then(Json::as_str);
    source.map(|source| Some(source.to_string())).ok_or_else(|| {
        let expected = "a template or a list of templates with one named \"default\"";
        fields.refuse(NAME, expected, "put the template into chat_template.jinja")
    })
}

/// The text of a template's file. Another encoding would give another prompt.
pub(super) fn utf8(file: &Path, bytes: Vec<u8>) -> Result<String, LoadError> {
    String::from_utf8(bytes).map_err(|error| {
        let found = format!("another byte at {}", error.utf8_error().valid_up_to());
        LoadError::new(file, NAME, "text in UTF-8", found, "save it in UTF-8")
    })
}

/// Reads the text of a special token: a string, or the `content` of an object.
pub(super) fn token(fields: &Fields, key: &str) -> Result<String, LoadError> {
    let Some(value) = fields.get(key) else { return Ok(String::new()) };
    let spelling = value.get("content").unwrap_or(value).as_str();
    spelling.map(str::to_string).ok_or_else(|| {
        let expected = "a string or an object with the key content";
        fields.refuse(key, expected, "download the file again")
    })
}
