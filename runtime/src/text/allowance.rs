//! The bytes and the work that one rendering of a chat template may use.

use std::fmt::{self, Write};

use minijinja::{Error, ErrorKind, State, Value};

/// Bytes of all strings that one rendering builds or writes: some copies of the longest body.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// Bytes of strings and elements of lists that operations of one rendering walk over.
const MAX_WORK: usize = 256 << 20;
/// Most characters to which `format` can pad a value, and spaces of an indent.
const MAX_WIDTH: usize = 4096;

/// Bytes and work left to one rendering, an extension of its [`State`].
#[derive(Clone, Copy)]
struct Allowance {
    bytes: usize,
    #[cfg_attr(not(feature = "template-metering"), allow(dead_code))]
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
#[cfg(feature = "template-metering")]
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
    let left = allowance(state).bytes;
    let mut counter = Counter(left);
    let counted = write!(counter, "{value}");
    counted.map(|()| left - counter.0).or_else(|_| charge(state, left + 1).map(|()| left))
}

/// Fails for a width beyond what any prompt has.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    match width <= MAX_WIDTH {
        true => Ok(()),
        false => Err(over(format!("a width of {MAX_WIDTH} characters"))),
    }
}
