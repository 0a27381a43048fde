//! The fork/join latch as the thread pool uses it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::explore;
use crate::fork_join_latch::ForkJoinLatch;

/// Shared state of the pool: the latch, the task of the region, and one result per worker.
struct Pool {
    latch: ForkJoinLatch,
    task: UnsafeCell<u32>,
    done: [UnsafeCell<u32>; 2],
}

impl Pool {
    fn new() -> Arc<Pool> {
        let done = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Pool { latch: ForkJoinLatch::new(), task: UnsafeCell::new(0), done })
    }

    /// A worker's loop, as in `pool.rs`.
    fn work(&self, worker: usize) {
        let mut last = 0;
        while let Some(region) = self.latch.enter(last) {
            last = region;
            // SAFETY: loom checks that the latch orders this read after the write in `region`.
            let task = self.task.with(|task| unsafe { *task });
            assert_eq!(u64::from(task), region, "the task of another region");
            // SAFETY: as above; each worker has its own cell.
            self.done[worker].with_mut(|done| unsafe { *done = task });
            self.latch.leave();
        }
    }

    /// A region as in `pool.rs`: the task is written while no worker is inside, and after `close`
    /// nothing of the region is in use.
    fn region(&self, number: u32) {
        // SAFETY: loom checks it: no worker is inside.
        self.task.with_mut(|task| unsafe { *task = number });
        self.latch.open();
        self.latch.close();
        for done in &self.done {
            // SAFETY: loom checks it: all workers have left.
            let done = done.with(|done| unsafe { *done });
            assert!(done <= number);
        }
    }
}

#[test]
fn a_region_ends_only_when_its_workers_have_left() {
    explore(3, || {
        let pool = Pool::new();
        let worker = pool.clone();
        let handle = thread::spawn(move || worker.work(0));
        pool.region(1);
        pool.region(2);
        pool.latch.stop();
        handle.join().unwrap();
    });
}

#[test]
fn two_workers_enter_and_leave() {
    explore(2, || {
        let pool = Pool::new();
        let handles = [0, 1].map(|index| {
            let pool = pool.clone();
            thread::spawn(move || pool.work(index))
        });
        pool.region(1);
        pool.latch.stop();
        for handle in handles {
            handle.join().unwrap();
        }
    });
}

/// A lost wake-up would cost speed alone in the pool, which waits for no sleeping worker. Here the
/// worker is waited for, so that it is a deadlock.
#[test]
fn opening_wakes_a_sleeping_worker() {
    explore(3, || {
        let latch = Arc::new(ForkJoinLatch::new());
        let worker = latch.clone();
        let handle = thread::spawn(move || {
            assert_eq!(worker.enter(0), Some(1));
            worker.leave();
        });
        latch.open();
        handle.join().unwrap();
        latch.close();
    });
}
