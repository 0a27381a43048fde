//! JSON in the forms of Python's `json.dumps`: chat templates format tool calls with it, and models
//! were trained on exactly these bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// The form of the text: the arguments of transformers' filter `tojson`, with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Style {
    /// Text of one level of indentation; `None` for a value on one line.
    pub indent: Option<String>,
    /// Text between two items; by default `", "`, or `","` with an indent.
    pub item_separator: String,
    /// Text between a key and its value.
    pub key_separator: String,
    /// Characters beyond ASCII are written as escapes of UTF-16.
    pub ensure_ascii: bool,
    /// Members are sorted by their keys.
    pub sort_keys: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style {
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            ensure_ascii: false,
            sort_keys: false,
        }
    }
}

/// Writes `value` in the form `style`.
pub(super) fn dumps(value: &impl Serialize, style: &Style) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    let formatter = Python { style, level: 0, has_items: false };
    let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
    match style.sort_keys {
        false => value.serialize(&mut serializer)?,
        true => sorted(serde_json::to_value(value)?).serialize(&mut serializer)?,
    }
    Ok(String::from_utf8(bytes).expect("serde_json writes UTF-8"))
}

/// `value` with the members of all objects in the order of their keys.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| (key, sorted(value)));
            members.collect::<BTreeMap<_, _>>().into_iter().collect()
        }
        other => other,
    }
}

struct Python<'a> {
    style: &'a Style,
    level: usize,
    /// True once the list or object that was just ended, or is open, has an item.
    has_items: bool,
}

impl Python<'_> {
    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.has_items = false;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.style.item_separator.as_bytes())?;
        }
        self.line(out)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.has_items {
            self.line(out)?;
        }
        out.write_all(bracket)
    }

    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = &self.style.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| out.write_all(indent.as_bytes()))
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.style.key_separator.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.style.ensure_ascii {
            return out.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for c in fragment.chars() {
            if c.is_ascii() {
                out.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut units) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Style, dumps};
    use serde_json::json;

    /// Python 3.11's `json.dumps` printed these texts.
    #[test]
    fn written_as_python_writes_it() {
        let value = json!({"b": [1, 2.5, "ü<b>🦀"], "a": {}, "c": [], "d": {"z": null, "y": true}});
        let with = |style: Style| dumps(&value, &Style { sort_keys: true, ..style }).unwrap();
        assert_eq!(
            with(Style::default()),
            r#"{"a": {}, "b": [1, 2.5, "ü<b>🦀"], "c": [], "d": {"y": true, "z": null}}"#
        );
        assert_eq!(
            with(Style { ensure_ascii: true, ..Style::default() }),
            "{\"a\": {}, \"b\": [1, 2.5, \"\\u00fc<b>\\ud83e\\udd80\"], \"c\": [], \
             \"d\": {\"y\": true, \"z\": null}}"
        );
        let compact =
            Style { item_separator: ",".into(), key_separator: ":".into(), ..Style::default() };
        assert_eq!(
            with(compact),
            r#"{"a":{},"b":[1,2.5,"ü<b>🦀"],"c":[],"d":{"y":true,"z":null}}"#
        );
        let tabs =
            Style { indent: Some("\t".into()), item_separator: ",".into(), ..Style::default() };
        assert_eq!(
            with(tabs),
            "{\n\t\"a\": {},\n\t\"b\": [\n\t\t1,\n\t\t2.5,\n\t\t\"ü<b>🦀\"\n\t],\n\t\"c\": [],\n\t\"d\": {\n\t\t\"y\": true,\n\t\t\"z\": null\n\t}\n}"
        );
        let unsorted = dumps(&json!([{"a": 1}, [[]]]), &Style::default()).unwrap();
        assert_eq!(unsorted, r#"[{"a": 1}, [[]]]"#);
    }
}
