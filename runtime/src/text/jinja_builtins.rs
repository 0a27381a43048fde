//! Filters and tests of Jinja that minijinja has not, or has otherwise.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::allowance::check_width;
use super::jinja_globals;
use super::python_methods::lines;
use super::python_text::{is_dict, text_of};

/// minijinja's own filters and tests. Jinja refuses a template with one.
const FOREIGN_FILTERS: [&str; 6] = ["bool", "chain", "lines", "pprint", "split", "zip"];
const FOREIGN_TESTS: [&str; 2] = ["startingwith", "endingwith"];
/// Attributes of a dict in Python.
pub(super) const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

pub(super) fn install(environment: &mut Environment) {
    FOREIGN_FILTERS.iter().for_each(|name| environment.remove_filter(name));
    FOREIGN_TESTS.iter().for_each(|name| environment.remove_test(name));
    environment.remove_global("debug");
    environment.add_filter("attr", attr);
    environment.add_filter("center", center);
    environment.add_filter("count", length);
    environment.add_filter("d", default);
    environment.add_filter("default", default);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("first", first);
    environment.add_filter("e", escape);
    environment.add_filter("escape", escape);
    environment.add_filter("float", float);
    environment.add_filter("format", format);
    environment.add_filter("groupby", groupby);
    environment.add_filter("indent", indent);
    environment.add_filter("int", int);
    environment.add_filter("items", items);
    environment.add_filter("length", length);
    environment.add_filter("replace", replace);
    environment.add_filter("string", |value: Value| string(&value));
    environment.add_filter("wordcount", wordcount);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
    environment.add_test("mapping", is_dict);
    environment.add_test("sequence", is_sequence);
    jinja_globals::install(environment);
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// The attribute `name` of `value` as Jinja finds it: a method of a dict comes before its member.
#[cfg_attr(not(feature = "template-metering"), allow(dead_code))]
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match is_dict(value) {
        true => Ok(Value::from_object(Method)),
        false => value.get_attr(name),
    }
}

/// A method that is not called: it is true, and has no text and no members.
#[derive(Debug)]
struct Method;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// Python's attributes are no members of a dict.
fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    match is_dict(value) {
        true if DICT_METHODS.contains(&name) => Ok(Value::from_object(Method)),
        true => Ok(Value::UNDEFINED),
        false => value.get_attr(name),
    }
}

fn center(value: Value, width: Option<usize>) -> Result<String, Error> {
    let (text, width) = (text_of(&value)?, width.unwrap_or(80));
    check_width(width)?;
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left)))
}

fn default(
    value: Value,
    default: Option<Value>,
    boolean: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get("default_value"), |value| Ok(Some(value)))?;
    let boolean = boolean.map_or_else(|| options.get("boolean"), |value| Ok(Some(value)))?;
    options.assert_all_used()?;
    let is_lax = boolean.is_some_and(|boolean: Value| boolean.is_true());
    let is_absent = value.is_undefined() || (is_lax && !value.is_true());
    Ok(if is_absent { default.unwrap_or_else(|| "".into()) } else { value })
}

fn dictsort(value: &Value, positional: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    if positional.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut all: Vec<(&str, Value)> = names.into_iter().zip(positional.iter().cloned()).collect();
    for name in names {
        all.extend(options.get::<Option<Value>>(name)?.map(|value| (name, value)));
    }
    options.assert_all_used()?;
    filters::dictsort(value, all.into_iter().collect())
}

fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { filters::first(value) }
}

/// As markupsafe does it. A text that is safe stays as it is.
fn escape(value: Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value);
    }
    let mut out = String::new();
    for c in text_of(&value)?.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\'' => out += "&#39;",
            '"' => out += "&#34;",
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

fn format(text: Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    if text.is_safe() {
        return Err(invalid("| format of a text of | e or | safe"));
    }
    let arguments = format_arguments(&arguments.into_values())?;
    minijinja::formatting::format(FormatStyle::Printf, &text_of(&text)?, &arguments)
}

/// Arguments of a format, lists and dicts as their texts.
pub(super) fn format_arguments(arguments: &[Value]) -> Result<Vec<Value>, Error> {
    let argument = |value: &Value| match value.kind() {
        ValueKind::Seq => text_of(value).map(Value::from),
        _ => Ok(value.clone()),
    };
    arguments.iter().map(argument).collect()
}

/// Numbers in a text may have spaces around and `_` between digits.
fn number_text(value: Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "no number"));
    }
    let text = value.as_str().map(|text| text.trim().replace('_', ""));
    Ok(text.map_or(value, Value::from))
}

fn int(
    state: &State,
    value: Value,
    default: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get("default"), |value| Ok(Some(value)))?;
    let default = default.or_else(|| Some(0.into()));
    filters::int(state, &number_text(value)?, default, base, options)
}

fn float(
    state: &State,
    value: Value,
    default: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get("default"), |value| Ok(Some(value)))?;
    let default = default.or_else(|| Some(0.0.into()));
    filters::float(state, &number_text(value)?, default, options)
}

/// Groups by a key without regard to case are named by the key of their first item, which
/// minijinja names by another one: they are refused.
fn groupby(value: Value, attribute: Option<&str>, options: Kwargs) -> Result<Value, Error> {
    let name = attribute.map_or_else(|| options.get::<&str>("attribute"), Ok)?.to_owned();
    let groups = filters::groupby(value, attribute, options)?;
    for group in groups.try_iter()? {
        let key = group.get_item_by_index(0)?;
        for item in group.get_item_by_index(1)?.try_iter()? {
            let own = item.get_attr(&name).ok().filter(|own| own.as_str().is_some());
            if own.is_some_and(|own| own != key) {
                return Err(invalid("groupby: keys that differ in case alone"));
            }
        }
    }
    Ok(groups)
}

fn indent(
    value: Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| options.get("width"), |width| Ok(Some(width)))?;
    let first = first.map_or_else(|| options.get("first"), |first| Ok(Some(first)))?;
    let blank = blank.map_or_else(|| options.get("blank"), |blank| Ok(Some(blank)))?;
    options.assert_all_used()?;
    let by = match width {
        None => "    ".into(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(i64::try_from(width)?).unwrap_or(0);
                check_width(width)?;
                " ".repeat(width)
            }
        },
    };
    check_width(by.len())?;
    let mut out = if first == Some(true) { by.clone() } else { String::new() };
    for (at, (line, _)) in lines(&(text_of(&value)? + "\n")).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
            out += if blank == Some(true) || !line.is_empty() { &by } else { "" };
        }
        out += line;
    }
    Ok(out)
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Vec::<Value>::new().into()) } else { filters::items(value) }
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

fn replace(value: Value, from: Value, to: Value, count: Option<i64>) -> Result<String, Error> {
    let (text, from, to) = (text_of(&value)?, text_of(&from)?, text_of(&to)?);
    Ok(match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(&from, &to, count),
        None => text.replace(&from, &to),
    })
}

/// `value` as text; one that is safe stays so.
fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() { Ok(value.clone()) } else { text_of(value).map(Value::from) }
}

/// Words as Python's `\w+` finds them.
fn wordcount(value: Value) -> Result<usize, Error> {
    let text = text_of(&value)?;
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    Ok(words.filter(|word| !word.is_empty()).count())
}

/// Of Python's iterators only a range has places, and minijinja does not tell which one it is.
fn is_sequence(value: &Value) -> Result<bool, Error> {
    match value.kind() {
        ValueKind::Iterable => Err(invalid("is sequence: of an iterator, add | list")),
        ValueKind::String | ValueKind::Seq | ValueKind::Undefined => Ok(true),
        _ => Ok(is_dict(value)),
    }
}
