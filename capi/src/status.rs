//! Results of calls.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailStatus {
    /// Done.
    Ok = 0,
    /// An argument, an option or a request is invalid, or a call does not fit the state of its
    /// handle.
    Argument = 1,
    /// A model, a probe or another file cannot be used.
    Model = 2,
    /// The engine is full or broke down: the request may be tried again.
    Engine = 3,
    /// A defect of the library. The handle must not be used any more, but for closing it.
    Panic = 4,
}

/// The reason for which a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: TrailStatus,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn argument(why: impl ToString) -> Failure {
        Failure { status: TrailStatus::Argument, message: why.to_string() }
    }

    pub(crate) fn model(why: impl ToString) -> Failure {
        Failure { status: TrailStatus::Model, message: why.to_string() }
    }

    /// An error of the caller's, or else of this kind.
    pub(crate) fn of(error: &trail_cli::Error, otherwise: TrailStatus) -> Failure {
        let status = if error.code() == 2 { TrailStatus::Argument } else { otherwise };
        Failure { status, message: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(message: &str) {
    let printable: Vec<u8> = message.bytes().filter(|&byte| byte != 0).collect();
    LAST.set(CString::new(printable).unwrap_or_default());
}

/// Runs a call. Its failure is remembered, and so is a panic.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Failure>) -> TrailStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => TrailStatus::Ok,
        Ok(Err(Failure { status, message })) => {
            remember(&message);
            status
        }
        Err(panic) => {
            remember(&format!("a defect of trail-rt: {}", text_of(&*panic)));
            // Its value may panic when it is dropped.
            std::mem::forget(panic);
            TrailStatus::Panic
        }
    }
}

/// Runs a call that cannot fail; a panic is remembered, and gives `otherwise`.
pub(crate) fn value<T: Copy>(otherwise: T, call: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut value = otherwise;
    guard(|| {
        value = call()?;
        Ok(())
    });
    value
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// The reason for which the last call of this thread that failed did: one line of UTF-8, empty if
/// none has. It is valid until the next call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn trail_last_error() -> *const c_char {
    LAST.with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr()))
}

/// The version of the library, as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn trail_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: the text of this thread, which no call has changed since.
        unsafe { CStr::from_ptr(trail_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        assert_eq!(guard(|| Ok(())), TrailStatus::Ok);
        assert_eq!(guard(|| Err(Failure::model("a\0b"))), TrailStatus::Model);
        assert_eq!(last(), "ab");
        assert_eq!(guard(|| panic!("index {}", 7)), TrailStatus::Panic);
        assert_eq!(last(), "a defect of trail-rt: index 7");
        assert_eq!(value(3, || panic!("no value")), 3);
        assert_eq!(std::thread::spawn(last).join().expect("no panic"), "");
    }
}
