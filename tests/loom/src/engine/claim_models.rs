//! The length probe's tasks: offered by one thread, run by any, published by the one that finishes
//! the last.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::task_claims::TaskClaims;
use crate::explore;

const TASKS: usize = 2;

/// The probe without its arithmetic. The runtime guards the stage with a lock too; here the claims
/// alone order its accesses.
struct Probe {
    tasks: TaskClaims,
    stage: UnsafeCell<u64>,
    partials: [UnsafeCell<u64>; TASKS],
    /// The last step that was published.
    done: AtomicU64,
}

impl Probe {
    fn new() -> Arc<Probe> {
        Arc::new(Probe {
            tasks: TaskClaims::new(),
            stage: UnsafeCell::new(0),
            partials: [UnsafeCell::new(0), UnsafeCell::new(0)],
            done: AtomicU64::new(0),
        })
    }

    fn offer(&self, step: u64) {
        // SAFETY: loom checks it: the tasks of the step before are finished.
        self.stage.with_mut(|stage| unsafe { *stage = step });
        self.tasks.offer(TASKS);
    }

    fn run_task(&self) -> bool {
        let Some(task) = self.tasks.claim() else { return false };
        // SAFETY: loom checks that the claim orders this after the stage was written.
        let step = self.stage.with(|stage| unsafe { *stage });
        // SAFETY: a task is claimed once.
        self.partials[task].with_mut(|partial| unsafe { *partial = step });
        if self.tasks.finish() {
            for partial in &self.partials {
                // SAFETY: loom checks that the thread of the last task sees what all wrote.
                assert_eq!(partial.with(|partial| unsafe { *partial }), step);
            }
            assert!(self.done.swap(step, Ordering::Release) < step, "published twice");
        }
        true
    }

    fn wait(&self, step: u64) {
        while self.run_task() || self.done.load(Ordering::Acquire) < step {
            thread::yield_now();
        }
    }
}

#[test]
fn every_step_is_published_once_by_the_thread_of_its_last_task() {
    explore(3, || {
        let probe = Probe::new();
        let assistant = probe.clone();
        let handle = thread::spawn(move || {
            // An assistant takes what it finds, also between the two steps.
            for _ in 0..3 {
                assistant.run_task();
            }
        });
        for step in 1..=2 {
            probe.offer(step);
            probe.wait(step);
        }
        handle.join().unwrap();
    });
}

#[test]
fn two_assistants_share_a_step() {
    explore(2, || {
        let probe = Probe::new();
        let handles = [(); 2].map(|()| {
            let assistant = probe.clone();
            thread::spawn(move || assistant.run_task())
        });
        probe.offer(1);
        probe.wait(1);
        for handle in handles {
            handle.join().unwrap();
        }
    });
}
