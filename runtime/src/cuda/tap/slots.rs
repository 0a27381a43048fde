//! Which step's rows are in which slot of the ring, and whether they are whole: shared by the
//! engine's thread, which announces steps, and the threads that consume them. Modelled in
//! `tests/loom/`.

use std::sync::PoisonError;

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Slots of the ring: step n and step n + 2 share one.
pub(super) const SLOTS: usize = 2;

/// State of a slot.
struct Slot<R> {
    /// The step, or 0.
    step: u64,
    /// A consumer has copied the rows.
    is_taken: bool,
    rows: Vec<R>,
}

/// The slots' state; `R` identifies a row.
pub(in crate::cuda) struct Slots<R> {
    slots: [Mutex<Slot<R>>; SLOTS],
    /// The last step that was given to the device.
    launched: AtomicU64,
    /// The last step with rows that was given to the device, and the last that a consumer has done
    /// with.
    announced: AtomicU64,
    finished: AtomicU64,
    /// Steps whose rows were overwritten before a consumer had copied them.
    late: AtomicU64,
}

impl<R: Copy> Slots<R> {
    /// Slots of up to `rows` rows.
    pub(super) fn new(rows: usize) -> Slots<R> {
        let slot = || Mutex::new(Slot { step: 0, is_taken: true, rows: Vec::with_capacity(rows) });
        let zero = || AtomicU64::new(0);
        let slots = [slot(), slot()];
        Slots { slots, launched: zero(), announced: zero(), finished: zero(), late: zero() }
    }

    /// Announces `step`, with `rows`, before it is given to the device. Returns true if there is
    /// something to wait for.
    pub(in crate::cuda) fn announce(&self, step: u64, rows: &[R]) -> bool {
        self.launched.store(step, Ordering::SeqCst);
        let mut slot = self.slot(step);
        if !slot.is_taken {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        slot.step = step;
        slot.is_taken = rows.is_empty();
        slot.rows.clear();
        slot.rows.extend_from_slice(rows);
        drop(slot);
        if !rows.is_empty() {
            self.announced.store(step, Ordering::SeqCst);
        }
        !rows.is_empty()
    }

    /// The oldest step that waits to be consumed; its rows are copied to `rows`. `None`: all that
    /// was announced so far is overwritten or consumed, and counts as finished.
    pub(super) fn next(&self, rows: &mut Vec<R>) -> Option<u64> {
        let announced = self.announced.load(Ordering::SeqCst);
        let finished = self.finished.load(Ordering::Relaxed);
        for step in [announced.saturating_sub(1), announced] {
            if step <= finished || step == 0 {
                continue;
            }
            let slot = self.slot(step);
            if slot.step == step && !slot.is_taken {
                rows.clear();
                rows.extend_from_slice(&slot.rows);
                return Some(step);
            }
        }
        self.finish(announced);
        None
    }

    /// Calls `copy` to copy the rows of `step` out of the ring. Returns true if the copy is whole:
    /// then the rows count as consumed. Otherwise the device may have overwritten them meanwhile,
    /// and [`Slots::announce`] has counted them as late.
    pub(in crate::cuda) fn take(&self, step: u64, copy: impl FnOnce()) -> bool {
        copy();
        // The device writes the slot only for a step that was announced. If that announcement comes
        // after this lock, so do its writes, and `copy` has read no such write.
        let mut slot = self.slot(step);
        let is_whole = slot.step == step;
        if is_whole {
            slot.is_taken = true;
        }
        is_whole
    }

    /// No thread works on the rows of `step` any more.
    pub(in crate::cuda) fn finish(&self, step: u64) {
        self.finished.fetch_max(step, Ordering::SeqCst);
    }

    /// Waits until `is_there` returns true, for the rows of `step`, and calls `pause` between two
    /// polls; `pause` returns false to end the wait. Returns false if the rows will not come.
    pub(super) fn wait(
        &self,
        step: u64,
        is_there: impl Fn() -> bool,
        mut pause: impl FnMut() -> bool,
    ) -> bool {
        while !is_there() {
            // Counted as late by the engine's thread.
            if self.is_overwritten(step) || !pause() {
                return false;
            }
        }
        true
    }

    /// Returns true if the device may have begun to overwrite the rows of `step`, so that its flag
    /// may never be seen.
    fn is_overwritten(&self, step: u64) -> bool {
        self.launched.load(Ordering::SeqCst) >= step + SLOTS as u64
    }

    /// Steps whose rows were overwritten before a prediction was made from them.
    pub(in crate::cuda) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Returns true if a step's rows are awaited or worked on.
    pub(super) fn is_busy(&self) -> bool {
        self.announced.load(Ordering::SeqCst) > self.finished.load(Ordering::SeqCst)
    }

    fn slot(&self, step: u64) -> MutexGuard<'_, Slot<R>> {
        self.slots[slot_of(step)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of `step`.
pub(super) fn slot_of(step: u64) -> usize {
    (step % SLOTS as u64) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_the_rows_are_overwritten() {
        let slots = Slots::new(1);
        let polls = |step, limit| {
            let mut polls = 0;
            let pause = || {
                polls += 1;
                polls < limit
            };
            // The flag of a later step is in the slot.
            assert!(!slots.wait(step, || false, pause));
            polls
        };
        slots.announce(1, &['a']);
        slots.announce(2, &['b']);
        assert_eq!((polls(1, 9), polls(2, 9)), (9, 9), "the rows may still come");
        slots.announce(3, &['c']);
        assert_eq!((polls(1, 9), polls(2, 9), polls(3, 9)), (0, 9, 9));
        // A step without rows may overwrite the slot as well.
        slots.announce(4, &[]);
        assert_eq!((polls(2, 9), slots.late()), (0, 2));
        assert!(slots.wait(3, || true, || panic!("the rows are there")));
    }
}
