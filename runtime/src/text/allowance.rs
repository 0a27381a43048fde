//! The bytes and the work that one rendering of a chat template may use.

use std::cell::Cell;
use std::fmt::{self, Write};

use minijinja::{Error, ErrorKind, Value};

/// Bytes of all strings that one rendering builds or writes: some copies of the longest body.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of strings and elements of lists that operations of one rendering walk over.
const MAX_WORK: usize = 256 << 20;
/// Most characters to which `format` can pad a value, and spaces of an indent.
const MAX_WIDTH: usize = 4096;

thread_local! {
    /// Bytes and work left to the rendering on this thread.
    static ALLOWANCE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Begins a rendering on this thread.
pub(super) fn begin() {
    ALLOWANCE.set((MAX_BYTES, MAX_WORK));
}

/// Charges `bytes` of a string that is built or written.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let (left, work) = ALLOWANCE.get();
    let left = left.checked_sub(bytes);
    let left = left.ok_or_else(|| over(format!("{} MiB of text", MAX_BYTES >> 20)))?;
    ALLOWANCE.set((left, work));
    Ok(())
}

/// Charges the bytes or elements that an operation walks over.
pub(super) fn charge_work(amount: usize) -> Result<(), Error> {
    let (bytes, left) = ALLOWANCE.get();
    let left = left.checked_sub(amount).ok_or_else(|| over("its allowance of work".into()))?;
    ALLOWANCE.set((bytes, left));
    Ok(())
}

/// An error that says which limit was passed.
fn over(limit: String) -> Error {
    Error::new(ErrorKind::OutOfFuel, limit)
}

/// Bytes of `value` as text, at least 16 for each piece of a list. Fails beyond what the rendering
/// may still build, also where shared parts of nested lists make the text longer than the value in
/// memory.
pub(super) fn text_bytes(value: &Value) -> Result<usize, Error> {
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
    let (left, _) = ALLOWANCE.get();
    let mut counter = Counter(left);
    let counted = write!(counter, "{value}");
    counted.map(|()| left - counter.0).or_else(|_| charge(left + 1).map(|()| left))
}

/// Fails for a width beyond what any prompt has.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    match width <= MAX_WIDTH {
        true => Ok(()),
        false => Err(over(format!("a width of {MAX_WIDTH} characters"))),
    }
}
