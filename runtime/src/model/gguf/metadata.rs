//! The key-value pairs of a GGUF file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::reader::Reader;
use crate::model::LoadError;

/// Accepted range of every constant that is not a size, as for `config.json`.
const POSITIVE: std::ops::RangeInclusive<f64> = 1e-12..=1e15;

/// Longest list: many times that of the largest vocabulary's merges.
const MAX_ITEMS: usize = 1 << 24;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned or signed integer.
    Int(i128),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(String),
    /// A list of values of one type.
    Array(Array),
}

/// A list of values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Integers of any width.
    Ints(Vec<i64>),
    /// f32 or f64.
    Floats(Vec<f32>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Strings.
    Texts(Vec<String>),
}

/// The metadata of one file.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: PathBuf,
    values: HashMap<String, Value>,
}

impl Metadata {
    /// Reads `count` pairs.
    pub(super) fn read(
        file: &Path,
        reader: &mut Reader<'_>,
        count: usize,
    ) -> Result<Self, LoadError> {
        reader.enter("metadata");
        let mut values = HashMap::new();
        for _ in 0..count {
            let key = reader.text()?.to_string();
            let kind = reader.u32()?;
            let value = read_value(reader, kind)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(reader.refuse("each key once".into(), format!("{key:?} twice")));
            }
        }
        Ok(Metadata { file: file.to_path_buf(), values })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The keys present, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// An error about `key`, whose value is not the `expected` one.
    pub fn refuse(&self, key: &str, expected: &str, remedy: &str) -> LoadError {
        let found = self.values.get(key).map_or("no such key".into(), describe);
        LoadError::new(&self.file, key, expected, found, remedy)
    }

    /// A string, or `None` where the key is absent.
    pub fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(key, "a string", DOWNLOAD_AGAIN)),
        }
    }

    /// A truth value, or `None` where the key is absent.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.refuse(key, "true or false", DOWNLOAD_AGAIN)),
        }
    }

    /// A whole number in `1..=max`, or `None` where the key is absent.
    pub fn optional_size(&self, key: &str, max: usize) -> Result<Option<usize>, LoadError> {
        self.get(key).map(|_| self.size(key, max)).transpose()
    }

    /// A number, or a list of equal ones, as converters write a size per layer.
    fn number(&self, key: &str) -> Option<Value> {
        match self.get(key)? {
            Value::Array(Array::Ints(items)) => {
                let first = *items.first()?;
                items.iter().all(|&item| item == first).then(|| Value::Int(first.into()))
            }
            Value::Array(Array::Floats(items)) => {
                let first = *items.first()?;
                items.iter().all(|&item| item == first).then(|| Value::Float(first.into()))
            }
            other => Some(other.clone()),
        }
    }

    /// A whole number in `1..=max`.
    pub fn size(&self, key: &str, max: usize) -> Result<usize, LoadError> {
        let size = match self.number(key) {
            Some(Value::Int(n)) => usize::try_from(n).ok(),
            _ => None,
        };
        size.filter(|n| (1..=max).contains(n)).ok_or_else(|| {
            self.refuse(key, &format!("a whole number from 1 to {max}"), DOWNLOAD_AGAIN)
        })
    }

    /// A token id below `vocab_size`, or `None` where the key is absent.
    pub fn token(&self, key: &str, vocab_size: usize) -> Result<Option<u32>, LoadError> {
        let id = match self.get(key) {
            None => return Ok(None),
            Some(Value::Int(n)) => u32::try_from(*n).ok(),
            Some(_) => None,
        };
        id.filter(|&id| (id as usize) < vocab_size).map(Some).ok_or_else(|| {
            self.refuse(key, &format!("a token id below {vocab_size}"), DOWNLOAD_AGAIN)
        })
    }

    /// A number from 1e-12 to 1e15, or `None` where the key is absent.
    pub fn optional_positive(&self, key: &str) -> Result<Option<f64>, LoadError> {
        let number = match self.number(key) {
            None if self.get(key).is_none() => return Ok(None),
            Some(Value::Float(number)) => Some(number),
            Some(Value::Int(number)) => Some(number as f64),
            _ => None,
        };
        number
            .filter(|number| POSITIVE.contains(number))
            .map(Some)
            .ok_or_else(|| self.refuse(key, "a number from 1e-12 to 1e15", DOWNLOAD_AGAIN))
    }

    /// A list of strings, or `None` where the key is absent.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Texts(texts))) => Ok(Some(texts)),
            Some(_) => Err(self.refuse(key, "a list of strings", DOWNLOAD_AGAIN)),
        }
    }

    /// A list of floats, or `None` where the key is absent.
    pub fn floats(&self, key: &str) -> Result<Option<&[f32]>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Floats(floats))) => Ok(Some(floats)),
            Some(_) => Err(self.refuse(key, "a list of floats", DOWNLOAD_AGAIN)),
        }
    }

    /// A list of integers, or `None` where the key is absent.
    pub fn ints(&self, key: &str) -> Result<Option<&[i64]>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Ints(ints))) => Ok(Some(ints)),
            Some(_) => Err(self.refuse(key, "a list of integers", DOWNLOAD_AGAIN)),
        }
    }
}

const DOWNLOAD_AGAIN: &str = "download the file again";

/// Numbers of the types in the file.
mod kind {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const TEXT: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

fn read_value(reader: &mut Reader<'_>, kind: u32) -> Result<Value, LoadError> {
    Ok(match kind {
        kind::TEXT => Value::Text(reader.text()?.to_string()),
        kind::ARRAY => Value::Array(read_array(reader)?),
        kind::BOOL => Value::Bool(read_bool(reader)?),
        kind::F32 | kind::F64 => Value::Float(read_float(reader, kind)?),
        kind => Value::Int(read_int(reader, kind)?),
    })
}

fn read_array(reader: &mut Reader<'_>) -> Result<Array, LoadError> {
    let kind = reader.u32()?;
    let count = reader.count(item_bytes(kind))?;
    // An item takes up to eight times its bytes in the file: the bytes left are no bound alone.
    if count > MAX_ITEMS {
        return Err(reader.refuse(format!("lists of at most {MAX_ITEMS} items"), count.to_string()));
    }
    Ok(match kind {
        kind::TEXT => Array::Texts(
            (0..count).map(|_| reader.text().map(str::to_string)).collect::<Result<_, _>>()?,
        ),
        kind::BOOL => {
            Array::Bools((0..count).map(|_| read_bool(reader)).collect::<Result<_, _>>()?)
        }
        kind::F32 | kind::F64 => {
            let one = |_| read_float(reader, kind).map(|value| value as f32);
            Array::Floats((0..count).map(one).collect::<Result<_, _>>()?)
        }
        kind::ARRAY => {
            return Err(reader.refuse("a list of plain values".into(), "a list of lists".into()));
        }
        kind => {
            let mut ints = Vec::with_capacity(count);
            for _ in 0..count {
                let value = read_int(reader, kind)?;
                let value = i64::try_from(value);
                ints.push(value.map_err(|_| {
                    reader.refuse("integers of 63 bits".into(), "a larger one".into())
                })?);
            }
            Array::Ints(ints)
        }
    })
}

/// Fewest bytes of an item of a list.
fn item_bytes(kind: u32) -> usize {
    match kind {
        kind::U16 | kind::I16 => 2,
        kind::U32 | kind::I32 | kind::F32 => 4,
        kind::U64 | kind::I64 | kind::F64 | kind::TEXT => 8,
        _ => 1,
    }
}

fn read_bool(reader: &mut Reader<'_>) -> Result<bool, LoadError> {
    match reader.array::<1>()? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(reader.refuse("0 or 1 for a truth value".into(), other.to_string())),
    }
}

fn read_float(reader: &mut Reader<'_>, kind: u32) -> Result<f64, LoadError> {
    match kind {
        kind::F32 => reader.array().map(f32::from_le_bytes).map(f64::from),
        _ => reader.array().map(f64::from_le_bytes),
    }
}

fn read_int(reader: &mut Reader<'_>, kind: u32) -> Result<i128, LoadError> {
    Ok(match kind {
        kind::U8 => u8::from_le_bytes(reader.array()?).into(),
        kind::I8 => i8::from_le_bytes(reader.array()?).into(),
        kind::U16 => u16::from_le_bytes(reader.array()?).into(),
        kind::I16 => i16::from_le_bytes(reader.array()?).into(),
        kind::U32 => u32::from_le_bytes(reader.array()?).into(),
        kind::I32 => i32::from_le_bytes(reader.array()?).into(),
        kind::U64 => u64::from_le_bytes(reader.array()?).into(),
        kind::I64 => i64::from_le_bytes(reader.array()?).into(),
        other => {
            return Err(reader.refuse("a value of type 0 to 12".into(), format!("type {other}")));
        }
    })
}

/// A value in a message.
fn describe(value: &Value) -> String {
    match value {
        Value::Int(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Text(text) => format!("{text:?}"),
        Value::Array(Array::Ints(_) | Array::Floats(_)) => "a list of numbers".into(),
        Value::Array(_) => "a list".into(),
    }
}
