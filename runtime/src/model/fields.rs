//! A JSON object read key by key, with errors that name the key.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::LoadError;

/// Accepted range of every constant that is not a size: wide enough for all models in use, narrow
/// enough that quotients and powers of constants stay within f64.
const POSITIVE: std::ops::RangeInclusive<f64> = 1e-12..=1e15;

/// The keys of one JSON object in `file`.
pub(crate) struct Fields<'a> {
    file: &'a Path,
    /// Prefix of keys in messages: empty at the top level, `rope_scaling.` inside that object.
    prefix: &'static str,
    object: Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Parses `bytes`, the content of `file`, which must be one object.
    pub(crate) fn parse(file: &'a Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let found = match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => return Ok(Fields { file, prefix: "", object }),
            Ok(other) => kind(&other).to_string(),
            Err(error) => error.to_string(),
        };
        Err(LoadError::new(file, "content", "a JSON object", found, "download the file again"))
    }

    /// Returns an error about `key`, whose value is not the `expected` one.
    pub(crate) fn refuse(&self, key: &str, expected: &str, remedy: &str) -> LoadError {
        let found = self.object.get(key).map_or("no such key".to_string(), Value::to_string);
        LoadError::new(self.file, format!("{}{key}", self.prefix), expected, found, remedy)
    }

    /// The value of `key`; an explicit null counts as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// The keys present.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.object.keys().map(String::as_str)
    }

    /// A whole number in `1..=max`.
    pub(crate) fn size(&self, key: &str, max: usize) -> Result<usize, LoadError> {
        let size = self.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        size.filter(|n| (1..=max).contains(n)).ok_or_else(|| {
            let expected = format!("a whole number from 1 to {max}");
            self.refuse(key, &expected, "check that this is the config.json of the model")
        })
    }

    /// Like [`size`](Self::size), or `None` where the key is absent.
    pub(crate) fn optional_size(&self, key: &str, max: usize) -> Result<Option<usize>, LoadError> {
        self.get(key).map(|_| self.size(key, max)).transpose()
    }

    /// Like [`positive`](Self::positive), or `None` where the key is absent.
    pub(crate) fn optional_positive(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.get(key).map(|_| self.positive(key)).transpose()
    }

    /// A number above 0, within [`POSITIVE`].
    pub(crate) fn positive(&self, key: &str) -> Result<f64, LoadError> {
        let number = self.get(key).and_then(Value::as_f64);
        number.filter(|x| POSITIVE.contains(x)).ok_or_else(|| {
            let remedy = "check that this is the config.json of the model";
            self.refuse(key, "a number from 1e-12 to 1e15", remedy)
        })
    }

    /// True or false; false where the key is absent.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, LoadError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.refuse(key, "true or false", "correct the value")),
        }
    }

    /// A string, or `None` where the key is absent.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(key, "a string", "correct the value")),
        }
    }

    /// The object at `key`, or `None` where the key is absent. `prefix` is `key` and a dot.
    pub(crate) fn object(
        &self,
        key: &str,
        prefix: &'static str,
    ) -> Result<Option<Fields<'a>>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                Ok(Some(Fields { file: self.file, prefix, object: object.clone() }))
            }
            Some(_) => Err(self.refuse(key, "an object", "correct the value")),
        }
    }

    /// The keys of the object at `key`, which must be there, and of the outer ones those that it
    /// lacks, but for `left_out`.
    pub(crate) fn merged(mut self, key: &str, left_out: &[&str]) -> Result<Self, LoadError> {
        let Some(Value::Object(inner)) = self.object.get(key).cloned() else {
            return Err(self.refuse(key, "an object", "download the file again"));
        };
        left_out.iter().for_each(|key| drop(self.object.remove(*key)));
        self.object.extend(inner);
        Ok(self)
    }

    /// A token id below `vocab_size`, or a list of such; empty where the key is absent.
    pub(crate) fn tokens(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let ids = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |id: &Value| {
            let id = id.as_u64().filter(|id| *id < vocab_size as u64)?;
            u32::try_from(id).ok()
        };
        ids.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(|| {
            let expected = format!("a token id below {vocab_size} or a list of such");
            self.refuse(key, &expected, "check that the file belongs to this model")
        })
    }
}

/// Name of the JSON type of `value`.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
