//! Methods of Python's strings, lists and dicts that minijinja's have not, or have otherwise.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::allowance::check_width;

/// Calls method `name` of `value`.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let found = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, name, arguments)?,
        (None, ValueKind::Seq) => of_list(value, name, arguments)?,
        (None, ValueKind::Map) => of_dict(value, name, arguments)?,
        _ => None,
    };
    found.map_or_else(|| unknown_method_callback(state, value, name, arguments), Ok)
}

/// The places of `text` at which [`splitlines`](https://docs.python.org/3/library/stdtypes.html)
/// ends a line, each with the line's end.
pub(super) fn lines(text: &str) -> Vec<(&str, &str)> {
    let ends =
        ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        let width = match &rest[at..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(1, char::len_utf8),
        };
        lines.push((&rest[..at], &rest[at..at + width]));
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push((rest, ""));
    }
    lines
}

fn of_text(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let value = match name {
        "removeprefix" => text.strip_prefix(one(arguments)?).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(one(arguments)?).unwrap_or(text).into(),
        "partition" => parts(text, text.split_once(separator(arguments)?), arguments, true)?,
        "rpartition" => parts(text, text.rsplit_once(separator(arguments)?), arguments, false)?,
        "rsplit" if !arguments.is_empty() => rsplit(text, arguments)?,
        "find" | "rfind" | "index" | "rindex" => return find(text, name, arguments).map(Some),
        "zfill" => {
            let sign = text.len()
                - text.trim_start_matches(['+', '-']).len().max(text.len().saturating_sub(1));
            let zeros = "0".repeat(missing(text, arguments)?);
            format!("{}{zeros}{}", &text[..sign], &text[sign..]).into()
        }
        "ljust" | "rjust" | "center" => justified(text, name, arguments)?,
        "isdigit" | "isdecimal" | "isnumeric" => {
            let () = from_args(arguments)?;
            is_number(text, name)?.into()
        }
        "title" => {
            let () = from_args(arguments)?;
            titled(text).into()
        }
        "swapcase" => swapped(text).into(),
        "splitlines" => {
            let (keep, options): (Option<bool>, Kwargs) = from_args(arguments)?;
            let keep = keep.or(options.get("keepends")?).unwrap_or(false);
            options.assert_all_used()?;
            let line = |(line, end): (&str, &str)| {
                Value::from(if keep { [line, end].concat() } else { line.into() })
            };
            lines(text).into_iter().map(line).collect()
        }
        "join" => {
            let (items,): (Value,) = from_args(arguments)?;
            for item in items.try_iter()? {
                if item.as_str().is_none() {
                    return Err(invalid(format!(
                        "join: an item is of type {}, not a text",
                        item.kind()
                    )));
                }
            }
            return Ok(None);
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn of_list(list: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match name {
        "index" => {
            let (wanted,): (Value,) = from_args(arguments)?;
            let at = list.try_iter()?.position(|item| item == wanted);
            Some(at.ok_or_else(|| invalid("index: the list has no such item".into()))?.into())
        }
        "copy" if !list.is_tuple() => Some(list.clone()),
        _ => None,
    })
}

fn of_dict(dict: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match name {
        "copy" => {
            let () = from_args(arguments)?;
            Some(dict.clone())
        }
        _ => None,
    })
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn one(arguments: &[Value]) -> Result<&str, Error> {
    let (text,): (&str,) = from_args(arguments)?;
    Ok(text)
}

fn separator(arguments: &[Value]) -> Result<&str, Error> {
    match one(arguments)? {
        "" => Err(invalid("an empty separator".into())),
        separator => Ok(separator),
    }
}

/// The tuple of a text that is split once, or of a whole one with the text `first` or last.
fn parts(
    text: &str,
    split: Option<(&str, &str)>,
    arguments: &[Value],
    first: bool,
) -> Result<Value, Error> {
    let parts = match (split, first) {
        (Some((before, after)), _) => [before, separator(arguments)?, after],
        (None, true) => [text, "", ""],
        (None, false) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn rsplit(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (&str, Option<i64>) = from_args(arguments)?;
    if separator.is_empty() {
        return Err(invalid("an empty separator".into()));
    }
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<Value> = text.rsplitn(limit + 1, separator).map(Value::from).collect();
    parts.reverse();
    Ok(parts.into())
}

/// The place of a text in another one, in characters, from and before given ones.
fn find(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
    let length = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { (at + length).max(0) } else { at.min(length) }) as usize;
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    let within = text.get(byte(start)..byte(end));
    let found = within.and_then(|within| {
        let at = if name.starts_with('r') { within.rfind(wanted) } else { within.find(wanted) };
        Some(start + within[..at?].chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if name.ends_with("find") => Ok((-1).into()),
        None => Err(invalid(format!("{name}: the text is not found"))),
    }
}

/// Characters that `text` has too few for the width of the first argument.
fn missing(text: &str, arguments: &[Value]) -> Result<usize, Error> {
    let width = arguments.first().cloned().unwrap_or_default();
    let width = usize::try_from(i64::try_from(width)?).unwrap_or(0);
    check_width(width)?;
    Ok(width.saturating_sub(text.chars().count()))
}

fn justified(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (_, fill): (Value, Option<char>) = from_args(arguments)?;
    let (missing, fill) = (missing(text, arguments)?, fill.unwrap_or(' ').to_string());
    let width = missing + text.chars().count();
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // The odd one goes where CPython puts it.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)).into())
}

/// Rust tells which characters are numeric, not which of those beyond ASCII are digits.
fn is_number(text: &str, name: &str) -> Result<bool, Error> {
    if text.is_empty() || !text.chars().all(char::is_numeric) {
        return Ok(false);
    }
    match text.is_ascii() || name == "isnumeric" {
        true => Ok(true),
        false => Err(invalid(format!("{name}: digits beyond ASCII"))),
    }
}

/// Letters at the begin of a word in title case, others in lower case.
fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_within = false;
    for c in text.chars() {
        match c {
            _ if is_within => out.extend(c.to_lowercase()),
            // The digraphs, which have a title case of their own.
            '\u{1c4}'..='\u{1c6}' => out.push('\u{1c5}'),
            '\u{1c7}'..='\u{1c9}' => out.push('\u{1c8}'),
            '\u{1ca}'..='\u{1cc}' => out.push('\u{1cb}'),
            '\u{1f1}'..='\u{1f3}' => out.push('\u{1f2}'),
            _ => {
                let mut upper = c.to_uppercase();
                out.extend(upper.next());
                upper.for_each(|c| out.extend(c.to_lowercase()));
            }
        }
        is_within = c.is_lowercase() || c.is_uppercase() || ('\u{1c4}'..='\u{1f3}').contains(&c);
    }
    out
}

fn swapped(text: &str) -> String {
    let swap = |c: char| match c.is_uppercase() {
        true => c.to_lowercase().collect::<String>(),
        false => c.to_uppercase().collect(),
    };
    text.chars().map(swap).collect()
}
