//! Charges of the operations by which a chat template builds strings and lists. Each function takes
//! the operands in their order.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::allowance::{charge, charge_work, check_width, text_bytes};

/// Work of an element of a list, in bytes of a string.
const ELEMENT_WORK: usize = 64;

pub(super) fn concatenate(operands: &[Value]) -> Result<(), Error> {
    if operands.iter().all(|operand| operand.kind() == ValueKind::Number) {
        return Ok(());
    }
    operands.iter().try_for_each(|operand| match operand.kind() {
        ValueKind::Seq | ValueKind::Iterable => charge_work(walk_work(operand)),
        _ => charge(text_bytes(operand)?),
    })
}

pub(super) fn multiply(operands: &[Value]) -> Result<(), Error> {
    let factor = operands.iter().filter_map(Value::as_usize).max().unwrap_or(0);
    operands.iter().try_for_each(|operand| match operand.kind() {
        ValueKind::String => charge(text_bytes(operand)?.saturating_mul(factor)),
        ValueKind::Seq | ValueKind::Iterable => {
            charge_work(walk_work(operand).saturating_mul(factor))
        }
        _ => Ok(()),
    })
}

pub(super) fn compare(operands: &[Value]) -> Result<(), Error> {
    operands.iter().try_for_each(|operand| charge_work(text_bytes(operand)?))
}

/// A value and where it is looked for: a map has it by its key.
pub(super) fn contains(operands: &[Value]) -> Result<(), Error> {
    match operands {
        [_, container] if container.kind() == ValueKind::Map => Ok(()),
        _ => compare(operands),
    }
}

pub(super) fn walk(operands: &[Value]) -> Result<(), Error> {
    operands.first().map_or(Ok(()), |first| charge_work(walk_work(first)))
}

/// Charges a filter that can make a list of what it is applied to.
pub(super) fn elements(operands: &[Value]) -> Result<(), Error> {
    let length = operands.first().map_or(0, |first| match first.as_str() {
        Some(text) => text.len(),
        None => first.len().unwrap_or(0),
    });
    charge_work(length.saturating_mul(ELEMENT_WORK))
}

/// Charges the parts of a string that is split.
pub(super) fn split(operands: &[Value]) -> Result<(), Error> {
    let Some(text) = operands.first().and_then(Value::as_str) else { return walk(operands) };
    let parts = match operands.get(1).and_then(Value::as_str) {
        Some("") => text.len(),
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    charge_work(text.len().saturating_add(parts.saturating_mul(ELEMENT_WORK)))
}

/// Work of walking over the characters or elements of `value`.
pub(super) fn walk_work(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ELEMENT_WORK),
    }
}

pub(super) fn write_first(operands: &[Value]) -> Result<(), Error> {
    operands.first().map_or(Ok(()), |first| charge(text_bytes(first)?))
}

pub(super) fn replace(operands: &[Value]) -> Result<(), Error> {
    write_first(operands)?;
    match operands {
        [text, from, to, ..] => charge_replace(&text.to_string(), from, to),
        _ => Ok(()),
    }
}

pub(super) fn charge_replace(text: &str, from: &Value, to: &Value) -> Result<(), Error> {
    let matches = from.as_str().map_or(text.len() + 1, |from| text.matches(from).count());
    charge(text_bytes(to)?.saturating_mul(matches).saturating_add(text.len()))
}

pub(super) fn join(operands: &[Value]) -> Result<(), Error> {
    match operands {
        [items, joiner, ..] => charge_join(items, joiner),
        [items] => charge_join(items, &Value::from("")),
        [] => Ok(()),
    }
}

pub(super) fn charge_join(items: &Value, joiner: &Value) -> Result<(), Error> {
    walk(std::slice::from_ref(items))?;
    let joiner = text_bytes(joiner)?;
    let Ok(items) = items.try_iter() else { return Ok(()) };
    for item in items {
        charge(text_bytes(&item)?.saturating_add(joiner))?;
    }
    Ok(())
}

pub(super) fn format(operands: &[Value]) -> Result<(), Error> {
    match operands {
        [format, values @ ..] => charge_format(format.as_str().unwrap_or_default(), values),
        [] => Ok(()),
    }
}

/// The widths to which values are padded are digits in the format's text.
pub(super) fn charge_format(format: &str, values: &[Value]) -> Result<(), Error> {
    charge(format.len())?;
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in numbers {
        let width = digits.parse().unwrap_or(usize::MAX);
        check_width(width)?;
        charge(width)?;
    }
    values.iter().try_for_each(|value| charge(text_bytes(value)?))
}

pub(super) fn indent(operands: &[Value]) -> Result<(), Error> {
    let [text, options @ ..] = operands else { return Ok(()) };
    let keywords = options.iter().filter(|option| option.is_kwargs());
    let keywords = keywords.filter_map(|option| option.get_attr("width").ok());
    let width = options.iter().cloned().chain(keywords).filter_map(|width| width.as_usize()).max();
    check_width(width.unwrap_or(0))?;
    let text = text.as_str().unwrap_or_default();
    charge(text.len() + (text.lines().count() + 1).saturating_mul(width.unwrap_or(4)))
}
