//! Charges of the operations by which a chat template builds strings and lists. Each function takes
//! the operands in their order.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::allowance::{
    ELEMENT_WORK, charge, charge_text, charge_work, check_depth, check_width, over, text_bytes,
};
use super::python_text::is_namespace;

pub(super) fn concatenate(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    if operands.iter().all(|operand| operand.kind() == ValueKind::Number) {
        return Ok(());
    }
    operands.iter().try_for_each(|operand| match operand.kind() {
        ValueKind::Seq | ValueKind::Iterable => charge_work(state, walk_work(operand)),
        _ => charge_text(state, operand),
    })
}

/// Two operands of `+`. Python escapes a text that is added to one of `| e` or `| safe`.
pub(super) fn add(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    if let [a, b] = operands
        && a.is_safe() != b.is_safe()
    {
        let other = if a.is_safe() { b } else { a };
        if other.as_str().is_some_and(|text| text.contains(['&', '<', '>', '\'', '"'])) {
            return Err(refused("+ with a text of | e or | safe: use ~".into()));
        }
    }
    concatenate(state, operands)
}

pub(super) fn multiply(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    let factor = operands.iter().filter_map(Value::as_usize).max().unwrap_or(0);
    operands.iter().try_for_each(|operand| match operand.kind() {
        ValueKind::String => {
            let bytes = text_bytes(state, operand)?;
            charge(state, bytes.saturating_mul(factor))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            charge_work(state, walk_work(operand).saturating_mul(factor))
        }
        _ => Ok(()),
    })
}

pub(super) fn compare(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    operands.iter().try_for_each(|operand| {
        let bytes = text_bytes(state, operand)?;
        charge_work(state, bytes)
    })
}

/// Values in an order, which Python has for numbers, for texts and for lists alone.
pub(super) fn order(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    let kind = |value: &Value| match value.kind() {
        ValueKind::Bool => ValueKind::Number,
        kind => kind,
    };
    if let [a, b] = operands {
        let ordered = matches!(kind(a), ValueKind::Number | ValueKind::String | ValueKind::Seq);
        if !ordered || kind(a) != kind(b) {
            return Err(refused(format!("{} and {} have no order", a.kind(), b.kind())));
        }
    }
    compare(state, operands)
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// A value and where it is looked for: a map has it by its key.
pub(super) fn contains(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    match operands {
        [value, text] if text.as_str().is_some() && value.as_str().is_none() => {
            Err(refused(format!("a text has no {} in it", value.kind())))
        }
        [_, container] if container.kind() == ValueKind::Map => Ok(()),
        _ => compare(state, operands),
    }
}

pub(super) fn walk(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    operands.first().map_or(Ok(()), |first| charge_work(state, walk_work(first)))
}

/// A value that a loop goes over: minijinja takes none for an empty list.
pub(super) fn iterate(_: &mut State, operands: &[Value]) -> Result<(), Error> {
    match operands.first() {
        Some(value) if value.is_none() => Err(refused("none is no list".into())),
        _ => Ok(()),
    }
}

/// A value whose part is taken.
pub(super) fn slice(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    match operands.first() {
        Some(value) if value.is_none() || value.is_undefined() => {
            Err(refused(format!("{} has no parts", value.kind())))
        }
        _ => walk(state, operands),
    }
}

/// Charges a filter that can make a list of what it is applied to.
pub(super) fn elements(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    iterate(state, operands)?;
    let length = operands.first().map_or(0, |first| match first.as_str() {
        Some(text) => text.len(),
        None => first.len().unwrap_or(0),
    });
    operands.first().map_or(Ok(()), |first| check_depth(state, first))?;
    charge_work(state, length.saturating_mul(ELEMENT_WORK))
}

/// Checks the parts of a list or a map.
pub(super) fn nest(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    operands.iter().try_for_each(|operand| check_depth(state, operand))
}

/// Checks a value that becomes an attribute of a namespace. With a namespace in it, that could be
/// in itself.
pub(super) fn assign(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    let [value, ..] = operands else { return Ok(()) };
    check_depth(state, value)?;
    match has_namespace(value) {
        true => Err(over("namespaces in each other: none is allowed".into())),
        false => Ok(()),
    }
}

/// True if a value of a known depth is a namespace, or has one.
fn has_namespace(value: &Value) -> bool {
    if is_namespace(value) {
        return true;
    }
    let is_map = value.kind() == ValueKind::Map;
    let items = || value.try_iter().ok().into_iter().flatten();
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => items().any(|item| match is_map {
            true => value.get_item(&item).is_ok_and(|item| has_namespace(&item)),
            false => has_namespace(&item),
        }),
        _ => false,
    }
}

/// Charges the parts of a string that is split.
pub(super) fn split(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    let Some(text) = operands.first().and_then(Value::as_str) else { return walk(state, operands) };
    let parts = match operands.get(1).and_then(Value::as_str) {
        Some("") => text.len(),
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    charge_work(state, text.len().saturating_add(parts.saturating_mul(ELEMENT_WORK)))
}

/// Work of walking over the characters or elements of `value`.
pub(super) fn walk_work(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ELEMENT_WORK),
    }
}

pub(super) fn write_first(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    operands.first().map_or(Ok(()), |first| charge_text(state, first))
}

pub(super) fn replace(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    write_first(state, operands)?;
    match operands {
        [text, from, to, ..] => charge_replace(state, &text.to_string(), from, to),
        _ => Ok(()),
    }
}

pub(super) fn charge_replace(
    state: &mut State,
    text: &str,
    from: &Value,
    to: &Value,
) -> Result<(), Error> {
    let matches = from.as_str().map_or(text.len() + 1, |from| text.matches(from).count());
    let bytes = text_bytes(state, to)?;
    charge(state, bytes.saturating_mul(matches).saturating_add(text.len()))
}

pub(super) fn join(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    match operands {
        [items, joiner, ..] => charge_join(state, items, joiner),
        [items] => charge_join(state, items, &Value::from("")),
        [] => Ok(()),
    }
}

pub(super) fn charge_join(state: &mut State, items: &Value, joiner: &Value) -> Result<(), Error> {
    walk(state, std::slice::from_ref(items))?;
    let joiner = text_bytes(state, joiner)?;
    let Ok(items) = items.try_iter() else { return Ok(()) };
    for item in items {
        let bytes = text_bytes(state, &item)?;
        charge(state, bytes.saturating_add(joiner))?;
    }
    Ok(())
}

pub(super) fn format(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    match operands {
        [format, values @ ..] => charge_format(state, format.as_str().unwrap_or_default(), values),
        [] => Ok(()),
    }
}

/// The widths to which values are padded are digits in the format's text.
pub(super) fn charge_format(
    state: &mut State,
    format: &str,
    values: &[Value],
) -> Result<(), Error> {
    charge(state, format.len())?;
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in numbers {
        let width = digits.parse().unwrap_or(usize::MAX);
        check_width(width)?;
        charge(state, width)?;
    }
    values.iter().try_for_each(|value| charge_text(state, value))
}

pub(super) fn indent(state: &mut State, operands: &[Value]) -> Result<(), Error> {
    let [text, options @ ..] = operands else { return Ok(()) };
    let keywords = options.iter().filter(|option| option.is_kwargs());
    let keywords = keywords.filter_map(|option| option.get_attr("width").ok());
    let width = options.iter().cloned().chain(keywords).filter_map(|width| width.as_usize()).max();
    check_width(width.unwrap_or(0))?;
    let text = text.as_str().unwrap_or_default();
    charge(state, text.len() + (text.lines().count() + 1).saturating_mul(width.unwrap_or(4)))
}
