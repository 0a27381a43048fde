//! The Jinja environment of chat templates, as transformers sets it.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::allowance::{charge_text, check_depth, check_width};
use super::bounds::{self, BoundedText};
use super::calendar::format_utc;
use super::jinja_builtins;
#[cfg(feature = "template-metering")]
use super::metering;
use super::python_json::{self, Style};
use super::python_methods;
use super::python_text::text_of;
#[cfg(feature = "template-metering")]
use super::template_check;

/// The template's name within its environment.
pub(super) const NAME: &str = "chat_template";

/// Creates a Jinja environment that matches transformers' for chat templates.
pub(super) fn environment(source: String) -> Result<Environment<'static>, Error> {
    // Jinja reads every line end as a line feed, in literals as well.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    bounds::install(&mut environment, &source)?;
    if source.contains("\\N{") {
        let why = "a character by its name, \\N{...}: write the character";
        return Err(Error::new(ErrorKind::SyntaxError, why));
    }
    #[cfg(feature = "template-metering")]
    metering::check_constants(&source, syntax.clone())?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(python_methods::call);
    jinja_builtins::install(&mut environment);
    #[cfg(feature = "template-metering")]
    metering::install(&mut environment);
    environment.set_formatter(write_value);
    environment.add_function(GENERATION, generation);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_template_owned(NAME, without_generation_tags(&source))?;
    #[cfg(feature = "template-metering")]
    template_check::check(&environment, NAME)?;
    Ok(environment)
}

/// Names the filters, tests and methods of the template that there are not, a phrase each.
#[cfg(feature = "template-metering")]
pub(super) fn missing(environment: &Environment<'static>) -> Vec<String> {
    template_check::missing(environment, NAME).unwrap_or_default()
}

/// Without the compiled instructions they are known when they are met.
#[cfg(not(feature = "template-metering"))]
pub(super) fn missing(_: &Environment<'static>) -> Vec<String> {
    Vec::new()
}

/// Name of the function behind `{% generation %}`.
const GENERATION: &str = "trail_generation";

/// Returns `source` with the tags `{% generation %}` and `{% endgeneration %}` of transformers,
/// which mark an answer's tokens for training, as the call of a function that writes what they
/// enclose. What is set within stays within, as in transformers.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("{%") {
        let Some((tag, behind)) = after.split_once("%}") else { break };
        let name = tag.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replaced = match name {
            "generation" => tag.replace(name, &format!("call {GENERATION}()")),
            "endgeneration" => tag.replace(name, "endcall"),
            _ => tag.to_string(),
        };
        out.extend([before, "{%", &replaced, "%}"]);
        rest = behind;
    }
    out + rest
}

fn generation(state: &mut State, options: Kwargs) -> Result<Value, Error> {
    options.get::<Value>("caller")?.call(state, &[])
}

/// Writes a value as Python's `str` gives it.
fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    charge_text(state, value)?;
    Ok(out.write_str(&text_of(value)?)?)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The date, in UTC: a server's answers must not depend on its time zone.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let text = format_utc(now.map_or(0, |since| since.as_secs()), format);
    text.map_err(|why| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {why}")))
}

/// `tojson` as transformers has it: without minijinja's escaping of `<`, `>` and `&`, which is for
/// web pages, and with the options of Python's `json.dumps`, by position or by name.
fn tojson(
    state: &mut State,
    value: Value,
    positional: Rest<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let option = |at: usize, name: &str| match positional.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let mut style = Style {
        ensure_ascii: is_true(option(0, "ensure_ascii")?),
        sort_keys: is_true(option(3, "sort_keys")?),
        indent: option(1, "indent")?.map_or(Ok(None), indentation)?,
        ..Style::default()
    };
    if style.indent.is_some() {
        style.item_separator = ",".into();
    }
    if let Some(separators) = option(2, "separators")?.filter(|value| !value.is_none()) {
        let separators: Vec<_> = separators.try_iter()?.map(|text| text.to_string()).collect();
        let [item_separator, key_separator]: [String; 2] = separators.try_into().map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "tojson: separators are two texts")
        })?;
        check_width(item_separator.len().max(key_separator.len()))?;
        style = Style { item_separator, key_separator, ..style };
    }
    options.assert_all_used()?;
    if matches!(value.kind(), ValueKind::Undefined | ValueKind::Iterable) {
        let why = format!("tojson: a value of type {} has no JSON", value.kind());
        return Err(Error::new(ErrorKind::BadSerialization, why));
    }
    check_depth(state, &value)?;
    let mut json = BoundedText::default();
    let written = python_json::dump(&value, &style, &mut json);
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    Ok(Value::from(json.finish(written.map_err(failed))?))
}

/// The text of one level of `indent`: a number of spaces, or the text itself.
fn indentation(indent: Value) -> Result<Option<String>, Error> {
    if indent.is_none() {
        return Ok(None);
    }
    let text = match indent.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let width = usize::try_from(i64::try_from(indent)?).unwrap_or(0);
            check_width(width)?;
            " ".repeat(width)
        }
    };
    check_width(text.len())?;
    Ok(Some(text))
}
