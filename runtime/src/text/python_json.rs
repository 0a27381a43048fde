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

/// Writes `value` to `out` in the form `style`.
pub(super) fn dump(
    value: &impl Serialize,
    style: &Style,
    out: &mut impl Write,
) -> serde_json::Result<()> {
    let formatter = Python { style, level: 0, has_items: false };
    let mut serializer = Serializer::with_formatter(out, formatter);
    match style.sort_keys {
        false => value.serialize(&mut serializer),
        true => sorted(serde_json::to_value(value)?).serialize(&mut serializer),
    }
}

/// A float as Python's `repr` writes it: the shortest digits, with an exponent of two digits or
/// more from 1e16 on and below 1e-4.
pub(super) fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    match scientific.split_once('e').and_then(|(digits, e)| Some((digits, e.parse::<i32>().ok()?)))
    {
        Some((digits, exponent)) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        // Rust's `Debug` writes `1.0` where `Display` writes `1`, but has an exponent as well.
        _ if value.is_finite() && value.fract() == 0.0 => format!("{value}.0"),
        _ => format!("{value}"),
    }
}

/// `value` with the members of all objects in the order of their keys, whatever features another
/// crate turns on in serde_json.
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

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
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
            if c.is_ascii() && c != '\u{7f}' {
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
    use super::{Style, dump, float};
    use serde_json::{Value, json};

    fn dumps(value: &Value, style: &Style) -> String {
        let mut out = Vec::new();
        dump(value, style, &mut out).expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    /// Python 3.11's `repr` printed these texts.
    #[test]
    fn floats_are_those_of_python() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (2.5, "2.5"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e22, "1.5e+22"),
            (-1e100, "-1e+100"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (5e-324, "5e-324"),
            (123_456_789.125, "123456789.125"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    /// Python 3.11's `json.dumps` printed these texts.
    #[test]
    fn written_as_python_writes_it() {
        let value = json!({"b": [1, 2.5, "ü<b>🦀"], "a": {}, "c": [], "d": {"z": null, "y": true}});
        let with = |style: Style| dumps(&value, &Style { sort_keys: true, ..style });
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
        let unsorted = dumps(&json!([{"a": 1}, [[]]]), &Style::default());
        assert_eq!(unsorted, r#"[{"a": 1}, [[]]]"#);
        let ascii = Style { ensure_ascii: true, ..Style::default() };
        assert_eq!(dumps(&json!("\u{7f}~\n"), &ascii), "\"\\u007f~\\n\"");
    }
}
