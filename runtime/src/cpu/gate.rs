//! A counter that threads wait on: spinning first, asleep if it takes long.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a waiter spins. Regions of a forward pass follow each other faster; an idle engine is
/// asleep soon after.
const SPIN: Duration = Duration::from_micros(50);
/// Pauses between two looks at the clock.
const PAUSES: usize = 32;
/// Turns given to other threads after spinning: on a machine with more runnable threads than cores, the
/// one that is waited for may need this very core.
const YIELDS: usize = 8;

/// A counter with waiters.
///
/// No wake-up is lost: a waiter announces itself in `sleepers` before it looks at `value` for the
/// last time, a writer changes `value` before it looks at `sleepers`, and all four are sequentially
/// consistent.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Gate {
    value: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Sets the counter.
    pub(crate) fn set(&self, value: usize) {
        self.value.store(value, SeqCst);
        self.wake();
    }

    /// Takes one off the counter; wakes the waiters when it reaches zero.
    pub(crate) fn count_down(&self) {
        if self.value.fetch_sub(1, SeqCst) == 1 {
            self.wake();
        }
    }

    /// Returns the first value seen for which `open` holds.
    pub(crate) fn wait(&self, open: impl Fn(usize) -> bool) -> usize {
        self.spin(&open).unwrap_or_else(|| self.sleep(&open))
    }

    fn spin(&self, open: impl Fn(usize) -> bool) -> Option<usize> {
        let look = || Some(self.value.load(SeqCst)).filter(|&value| open(value));
        let mut start = None;
        while start.get_or_insert_with(Instant::now).elapsed() < SPIN {
            for _ in 0..PAUSES {
                if let Some(value) = look() {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
        }
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if let Some(value) = look() {
                return Some(value);
            }
        }
        None
    }

    fn sleep(&self, open: impl Fn(usize) -> bool) -> usize {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, SeqCst);
        let value = loop {
            let value = self.value.load(SeqCst);
            if open(value) {
                break value;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, SeqCst);
        value
    }

    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            // A sleeper between its look and its wait holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}
