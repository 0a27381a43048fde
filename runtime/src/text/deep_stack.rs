//! Work on a thread with a large stack: the compiler of templates recurses over chains as long as
//! their source, and macros call each other to the engine's limit.

use std::io;
use std::panic::resume_unwind;
use std::thread;

/// Stack of the thread, bytes: address space, whose pages take memory once they are used. A test
/// compiles chains as long as a source may be.
const STACK_BYTES: usize = 128 << 20;

/// Runs `work` on a thread with a large stack, and returns its result; a panic goes on here.
///
/// # Errors
///
/// There is no memory for the thread, or the process may have no more.
pub(super) fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("trail-template".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
