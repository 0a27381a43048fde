//! The door to a parallel region: opened by one thread, entered by those that come in time.
//!
//! A worker that is asleep, or whose core the system has given away, is not waited for: the region
//! closes without it when its work is done. Only who is inside must leave before the region ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a waiter spins. Regions of a forward pass follow each other faster; an idle engine is
/// asleep soon after.
const SPIN: Duration = Duration::from_micros(50);
/// Pauses between two looks at the clock.
const PAUSES: usize = 32;

/// The state: region number, then these two bits, then the number of threads inside.
const OPEN: u64 = 1 << 31;
const STOPPED: u64 = 1 << 30;
const INSIDE: u64 = STOPPED - 1;
/// One region.
const REGION: u64 = 1 << 32;

/// The door.
///
/// No wake-up is lost: a waiter counts itself in `sleepers` before it looks at `state` for the last
/// time, a writer changes `state` before it looks at `sleepers`, and all of it is sequentially
/// consistent.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Gate {
    state: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Opens the next region. Nobody may be inside.
    pub(crate) fn open(&self) {
        let state = self.state.load(SeqCst);
        debug_assert_eq!(state & (OPEN | INSIDE), 0);
        self.state.store((state & !(REGION - 1)).wrapping_add(REGION) | OPEN, SeqCst);
        self.wake();
    }

    /// Lets nobody in any more, and waits until those inside have left.
    pub(crate) fn close(&self) {
        if self.state.fetch_and(!OPEN, SeqCst) & INSIDE > 0 {
            self.wait(|state| state & INSIDE == 0);
        }
    }

    /// Waits for an open region other than `last`, enters and returns it; `None` once stopped.
    pub(crate) fn enter(&self, last: u64) -> Option<u64> {
        loop {
            let state = self.wait(|state| {
                state & STOPPED != 0 || (state & OPEN != 0 && state / REGION != last)
            });
            if state & STOPPED != 0 {
                return None;
            }
            if self.state.compare_exchange(state, state + 1, SeqCst, SeqCst).is_ok() {
                return Some(state / REGION);
            }
        }
    }

    /// Leaves the region entered.
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(1, SeqCst) & (OPEN | INSIDE) == 1 {
            self.wake();
        }
    }

    /// Sends away all who wait to enter.
    pub(crate) fn stop(&self) {
        self.state.fetch_or(STOPPED, SeqCst);
        self.wake();
    }

    /// Returns the first state seen for which `done` holds: spins, then sleeps. Yielding in between was
    /// measured worse on a machine with more runnable threads than cores: the system takes it for
    /// consent to wait a whole turn, while a sleeper is woken when there is work.
    fn wait(&self, done: impl Fn(u64) -> bool) -> u64 {
        let look = || Some(self.state.load(SeqCst)).filter(|&state| done(state));
        let mut start = None;
        loop {
            for _ in 0..PAUSES {
                if let Some(state) = look() {
                    return state;
                }
                std::hint::spin_loop();
            }
            if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
                break;
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.sleepers.fetch_add(1, SeqCst);
            if let Some(state) = look() {
                return state;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all sleepers, once: they count themselves anew if they go back to sleep.
    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 && self.sleepers.swap(0, SeqCst) > 0 {
            // A sleeper between its last look and its wait holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}
