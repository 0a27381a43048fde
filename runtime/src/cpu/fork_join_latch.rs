//! Fork/join latch of a parallel region: one thread opens it, workers that arrive in time enter.
//!
//! A worker that is asleep or preempted by the system is not waited for: when the work is done, the
//! region closes without it. Only workers inside must leave before the region ends. Modelled in
//! `tests/loom/`.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering::SeqCst};

/// Time that a waiter spins before it sleeps. Longer than the gap between two regions of a forward
/// pass; short enough that an idle engine soon uses no CPU.
const SPIN: Duration = Duration::from_micros(50);
/// Spin iterations between two reads of the clock.
const PAUSES: usize = 32;

/// Bits of the state: region number (from bit 32), open, stopped, number of threads inside (30
/// bits).
const OPEN: u64 = 1 << 31;
const STOPPED: u64 = 1 << 30;
const INSIDE: u64 = STOPPED - 1;
/// Increment of the region number.
const REGION: u64 = 1 << 32;

/// The latch.
///
/// No wake-up is lost: a waiter increments `sleepers` before its last check of `state`, a writer
/// changes `state` before it reads `sleepers`, and all accesses are sequentially consistent.
#[repr(align(128))]
pub(crate) struct ForkJoinLatch {
    state: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl ForkJoinLatch {
    /// A closed latch, with no region so far.
    pub(crate) fn new() -> Self {
        let latch = ForkJoinLatch {
            state: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        };
        if cfg!(loom) {
            // loom orders SeqCst loads after SeqCst stores, but not after an initial value.
            latch.state.store(0, SeqCst);
            latch.sleepers.store(0, SeqCst);
        }
        latch
    }

    /// Opens the next region. No thread may be inside.
    pub(crate) fn open(&self) {
        let state = self.state.load(SeqCst);
        debug_assert_eq!(state & (OPEN | INSIDE), 0);
        self.state.store((state & !(REGION - 1)).wrapping_add(REGION) | OPEN, SeqCst);
        self.wake();
    }

    /// Closes the region to new threads, and waits until those inside have left.
    pub(crate) fn close(&self) {
        if self.state.fetch_and(!OPEN, SeqCst) & INSIDE > 0 {
            self.wait(|state| state & INSIDE == 0);
        }
    }

    /// Waits for an open region other than `last`, enters it and returns its number; `None` once
    /// stopped.
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

    /// Leaves the region.
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(1, SeqCst) & (OPEN | INSIDE) == 1 {
            self.wake();
        }
    }

    /// Ends every current and future wait in [`enter`](Self::enter).
    pub(crate) fn stop(&self) {
        self.state.fetch_or(STOPPED, SeqCst);
        self.wake();
    }

    /// Spins, then sleeps, until the state satisfies `done`; returns that state. Yielding in
    /// between was measured worse on a machine with more runnable threads than cores: a yielding
    /// thread may lose a whole time slice, while a sleeping one is woken as soon as there is work.
    fn wait(&self, done: impl Fn(u64) -> bool) -> u64 {
        let check = || Some(self.state.load(SeqCst)).filter(|&state| done(state));
        // Time has no place in a model: there, a waiter sleeps at once.
        if !cfg!(loom)
            && let Some(state) = spin(check)
        {
            return state;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.sleepers.fetch_add(1, SeqCst);
            if let Some(state) = check() {
                return state;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all sleepers. A thread that goes back to sleep increments `sleepers` again.
    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 && self.sleepers.swap(0, SeqCst) > 0 {
            // A sleeper between its last check and its wait holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}

/// Repeats `check` for [`SPIN`]; `None` if it never succeeded.
fn spin(check: impl Fn() -> Option<u64>) -> Option<u64> {
    let mut start = None;
    loop {
        for _ in 0..PAUSES {
            if let Some(state) = check() {
                return Some(state);
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return None;
        }
    }
}
