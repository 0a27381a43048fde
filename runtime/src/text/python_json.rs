//! JSON with the spacing of Python's `json.dumps(value, ensure_ascii=False)`: chat templates format
//! tool calls with it, and models were trained on exactly these bytes.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Writes `value` on one line, or on several lines with `indent` spaces per level.
pub(super) fn dumps(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine))?,
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
        }
    }
    Ok(String::from_utf8(bytes).expect("serde_json writes UTF-8"))
}

/// Formatter with a space after each comma and colon.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn spaced_like_python() {
        let value = json!({"a": [1, 2.5, "ü<b>"], "b": {}});
        assert_eq!(super::dumps(&value, None).unwrap(), r#"{"a": [1, 2.5, "ü<b>"], "b": {}}"#);
        assert_eq!(super::dumps(&json!([1]), Some(2)).unwrap(), "[\n  1\n]");
    }
}
