//! The driver's functions, a file for each family, and the state behind them.
//!
//! There is one device with one context. Work is queued ([`queue`]) and runs when something waits
//! for it, or earlier, by seed.

pub(crate) mod chip;
pub(crate) mod config;
mod context;
pub(crate) mod control;
mod copy;
mod cubin;
mod device;
pub(crate) mod error;
mod event;
mod graph;
mod host;
mod launch;
mod memory;
mod module;
mod occupancy;
mod posted;
mod queue;
mod run;
pub(crate) mod state;
mod stream;
mod tensor_map;
mod unsupported;

use std::cell::Cell;

/// `CUresult`.
pub(crate) type Code = u32;
/// Result of an API function.
pub(crate) type Answer = Result<(), Code>;

thread_local! {
    /// The context that this thread made current.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Runs the body of an API function: a panic must not cross the border.
pub(crate) fn answer(name: &str, body: impl FnOnce() -> Answer) -> Code {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!("trail-cuda-emulator: {name}: internal error");
            error::UNKNOWN
        }
    }
}

/// Writes through a pointer that the caller gave.
///
/// # Safety
/// `to` is null or valid for a write of `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: not null, hence valid by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Declares exported functions. Their contracts are the CUDA driver API's.
macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            /// As in the CUDA driver API.
            ///
            /// # Safety
            /// As in the CUDA driver API: pointers are null or valid for what the function does
            /// with them.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::driver::Code {
                $crate::driver::answer(stringify!($name), || $body)
            }
        )*
    };
}

pub(crate) use api;
