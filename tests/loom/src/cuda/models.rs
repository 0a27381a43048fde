//! A copy that counts as whole holds the rows of one step, whatever the device writes meanwhile.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::slots::{SLOTS, Slots, slot_of};
use crate::explore;

/// Words of a slot's rows.
const WORDS: usize = 2;

/// The ring's memory, which the copy engine writes, and the state of its slots.
struct Ring {
    slots: Slots<u64>,
    words: [[AtomicU64; WORDS]; SLOTS],
    flags: [AtomicU64; SLOTS],
}

impl Ring {
    fn new() -> Arc<Ring> {
        let word = || AtomicU64::new(0);
        let words = [[word(), word()], [word(), word()]];
        Arc::new(Ring { slots: Slots::new(1), words, flags: [word(), word()] })
    }

    /// The engine's thread, and the device behind it: rows in no order, then their flag.
    fn launch(&self, step: u64) {
        assert!(self.slots.announce(step, &[step]));
        let slot = slot_of(step);
        self.words[slot].iter().for_each(|word| word.store(step, Ordering::Relaxed));
        self.flags[slot].store(step, Ordering::Release);
    }

    /// The consumer's wait; false if the rows were overwritten.
    fn wait_for_rows(&self, step: u64) -> bool {
        let is_there = || self.flags[slot_of(step)].load(Ordering::Acquire) == step;
        let pause = || {
            thread::yield_now();
            true
        };
        self.slots.wait(step, is_there, pause)
    }

    /// Consumes what is there; returns the number of whole copies.
    fn consume(&self) -> u64 {
        let (mut rows, mut whole) = (Vec::new(), 0);
        while let Some(step) = self.slots.next(&mut rows) {
            assert_eq!(rows, [step], "rows of another step");
            let mut copied = [0; WORDS];
            let copy = || {
                let words = &self.words[slot_of(step)];
                copied = [0, 1].map(|at| words[at].load(Ordering::Relaxed));
            };
            if self.wait_for_rows(step) && self.slots.take(step, copy) {
                assert_eq!(copied, [step; WORDS], "a torn copy of step {step}");
                whole += 1;
            }
            self.slots.finish(step);
        }
        whole
    }
}

#[test]
fn a_whole_copy_is_of_one_step_and_every_step_is_whole_or_late() {
    explore(3, || {
        let ring = Ring::new();
        let device = ring.clone();
        let engine = thread::spawn(move || (1..=3).for_each(|step| device.launch(step)));
        let mut whole = ring.consume();
        engine.join().unwrap();
        whole += ring.consume();
        assert!(!ring.slots.is_busy());
        assert_eq!(whole + ring.slots.late(), 3);
    });
}
