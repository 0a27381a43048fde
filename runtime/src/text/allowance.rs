//! The bytes and the work that one rendering of a chat template may use.

use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// Bytes of all strings that one rendering builds or writes: some copies of the longest body.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// Bytes of strings and elements of lists that operations of one rendering walk over.
const MAX_WORK: usize = 256 << 20;
/// Lists and maps in each other; JSON of requests has at most 128.
const MAX_DEPTH: usize = 160;
/// Work of an element of a list, in bytes of a string.
pub(super) const ELEMENT_WORK: usize = 64;
/// Most characters to which `format` can pad a value, and spaces of an indent.
const MAX_WIDTH: usize = 4096;

/// Bytes and work left to one rendering, an extension of its [`State`].
#[derive(Clone, Copy)]
struct Allowance {
    bytes: usize,
    work: usize,
}

fn allowance<'state>(state: &'state mut State) -> &'state mut Allowance {
    state.get_or_insert_extension(Allowance { bytes: MAX_BYTES, work: MAX_WORK })
}

/// Charges `bytes` of a string that is built or written.
pub(super) fn charge(state: &mut State, bytes: usize) -> Result<(), Error> {
    let left = &mut allowance(state).bytes;
    let rest = left.checked_sub(bytes);
    *left = rest.ok_or_else(|| over(format!("{} MiB of text", MAX_BYTES >> 20)))?;
    Ok(())
}

/// Charges `value` as text.
pub(super) fn charge_text(state: &mut State, value: &Value) -> Result<(), Error> {
    let bytes = text_bytes(state, value)?;
    charge(state, bytes)
}

/// Charges the bytes or elements that an operation walks over.
pub(super) fn charge_work(state: &mut State, amount: usize) -> Result<(), Error> {
    let left = &mut allowance(state).work;
    *left = left.checked_sub(amount).ok_or_else(|| over("its allowance of work".into()))?;
    Ok(())
}

/// An error that says which limit was passed.
pub(super) fn over(limit: String) -> Error {
    Error::new(ErrorKind::OutOfFuel, limit)
}

/// Bytes of `value` as text, at least 16 for each piece of a list. Fails beyond what the rendering
/// may still build, also where shared parts of nested lists make the text longer than the value in
/// memory.
pub(super) fn text_bytes(state: &mut State, value: &Value) -> Result<usize, Error> {
    struct Counter(usize);
    impl fmt::Write for Counter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // Nested lists write many short pieces, which take time too.
            self.0 = self.0.checked_sub(text.len().max(16)).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    check_depth(state, value)?;
    let left = allowance(state).bytes;
    let mut counter = Counter(left);
    let counted = write!(counter, "{value}");
    counted.map(|()| left - counter.0).or_else(|_| charge(state, left + 1).map(|()| left))
}

/// Fails for lists and maps in each other beyond [`MAX_DEPTH`]: writing, comparing and dropping a
/// value recurse over it.
pub(super) fn check_depth(state: &mut State, value: &Value) -> Result<(), Error> {
    check_levels(state, value, MAX_DEPTH)
}

fn check_levels(state: &mut State, value: &Value, left: usize) -> Result<(), Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return Ok(());
    }
    if left == 0 {
        return Err(over(format!("{MAX_DEPTH} lists and maps in each other")));
    }
    charge_work(state, value.len().unwrap_or(0).saturating_mul(ELEMENT_WORK))?;
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter()? {
        let item = if is_map { value.get_item(&item)? } else { item };
        check_levels(state, &item, left - 1)?;
    }
    Ok(())
}

/// Fails for a width beyond what any prompt has.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    match width <= MAX_WIDTH {
        true => Ok(()),
        false => Err(over(format!("a width of {MAX_WIDTH} characters"))),
    }
}
