//! Allocations, counted by `trail-counting-allocator`. The forward pass, which counts those of all
//! threads to the last one, has its own process: `cpu_allocations`.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod engine;
mod sampling;
mod waiting;

/// Bytes are counted for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
