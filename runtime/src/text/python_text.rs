//! The texts that Python's `str` and `repr` give values of a chat template.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python_json::float;

/// The text of `value` as Python's `str` gives it, of an undefined value an empty one as Jinja's.
///
/// # Errors
///
/// Python's text would be a description with an address: of an iterator, a namespace, a function.
pub(super) fn text_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => out += text,
        None if value.is_undefined() => {}
        None => write_repr(value, &mut out)?,
    }
    Ok(out)
}

/// True for a namespace, which minijinja takes for a map.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// True for a dict of Python.
pub(super) fn is_dict(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !is_namespace(value)
}

fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            quote(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (at, item) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_repr(&item, out)?;
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        ValueKind::Map if is_dict(value) => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_repr(&key, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        kind => {
            let name = if kind == ValueKind::Map { "namespace".into() } else { kind.to_string() };
            let why = format!("a value of type {name} has no text: add | list, or name its part");
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    }
    Ok(())
}

/// Writes `text` as a literal of Python.
fn quote(text: &str, out: &mut String) {
    let quotes = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quotes);
    for c in text.chars() {
        let code = u32::from(c);
        let written = match c {
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\\' => write!(out, "\\\\"),
            _ if c == quotes => write!(out, "\\{c}"),
            _ if is_printable(c) => write!(out, "{c}"),
            _ if code < 0x100 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
        // Writing to a string never fails.
        let _ = written;
    }
    out.push(quotes);
}

/// Python's `str.isprintable`: no control, format, private or unassigned character, and no space
/// but U+0020. Rust's escapes follow the same rule for a character that is not the first one.
pub(super) fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        _ if c.is_ascii() => false,
        _ => !String::from_iter(['a', c]).escape_debug().to_string().contains('\\'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Tuple;

    /// Python 3.11's `str` printed these.
    #[test]
    fn texts_are_those_of_python() {
        let value = |json: &str| -> Value { serde_json::from_str(json).expect("JSON") };
        for (json, text) in [
            (r#"[1, 1.0, 1e20, true, null, "a"]"#, "[1, 1.0, 1e+20, True, None, 'a']"),
            (r#"["it's", "q\"q", "'\"", "\\\n\r\t"]"#, r#"["it's", 'q"q', '\'"', '\\\n\r\t']"#),
            (r#"["\u0000\u007f\u00a0\u00ad\u2028"]"#, r"['\x00\x7f\xa0\xad\u2028']"),
            ("[\"x\u{302}\u{302}é日🦀\u{e0001}\"]", "['x\u{302}\u{302}é日🦀\\U000e0001']"),
            (r#"{"a": [], "b": {}}"#, "{'a': [], 'b': {}}"),
            (r#""it's""#, "it's"),
        ] {
            assert_eq!(text_of(&value(json)).expect("a text"), text);
        }
        let one = Value::from(Tuple::from([Value::from(1)]));
        assert_eq!(text_of(&one).expect("a text"), "(1,)");
        assert_eq!(text_of(&Value::UNDEFINED).expect("a text"), "");
        let iterator = Value::make_iterable(|| 0..3);
        assert!(text_of(&iterator).unwrap_err().to_string().contains("no text"));
    }
}
