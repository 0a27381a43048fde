//! The threads of the CPU backend: fork/join regions, dull and cheap.
//!
//! The work of a region is claimed item by item from a counter, and threads that come late are not
//! waited for. A neighbour that takes a core for a while then delays one item, not half a layer. Which
//! thread computes an item alters no bit of it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::gate::Gate;

/// What a region runs, its lifetime erased for the time of the region.
type Task = &'static (dyn Fn(usize) + Sync);

struct Shared {
    gate: Gate,
    /// The region's closure: written before the gate opens, read by those who have entered.
    task: UnsafeCell<Option<Task>>,
    /// The first panic of the region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written only by the holder of `&mut Pool` while nobody is within the gate, and
// read by others only within it; the gate orders the two.
unsafe impl Sync for Shared {}

/// Persistent threads. The thread that starts a region is its worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `num_workers` workers, the caller included.
    pub fn new(num_workers: usize) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            gate: Gate::default(),
            task: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, threads: Vec::new() };
        for worker in 1..num_workers {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("trail-cpu-{worker}"))
                .spawn(move || work(&shared, worker))
                .map_err(|error| format!("cannot start worker {worker}: {error}"))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Workers, the caller included.
    pub fn num_workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `work(worker, item)` once for each of `items` items, and returns when all is done. A worker
    /// that finds no item left calls `assist` for as long as it says true and another is at work or
    /// assists: it would only wait. `assist` must say false in the end. A panic of `work` is raised
    /// again here.
    pub fn for_each(
        &mut self,
        items: usize,
        assist: impl Fn() -> bool + Sync,
        work: impl Fn(usize, usize) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let claim_all = |worker: usize| {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                work(worker, item);
            }
        };
        if self.threads.is_empty() || items == 0 {
            return claim_all(0);
        }
        let busy = AtomicUsize::new(0);
        self.region(&|worker| {
            let at_work = AtWork::new(&busy);
            claim_all(worker);
            drop(at_work);
            while busy.load(Ordering::Relaxed) > 0 {
                // Who assists is waited for as well, so the others may assist meanwhile.
                let _at_work = AtWork::new(&busy);
                if !assist() {
                    break;
                }
            }
        });
    }

    /// Runs `task(worker)` here and on the workers that come before it has returned here.
    fn region(&mut self, task: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes: `close` below waits, also after a panic, until all have
        // left who will ever touch the closure.
        let task: Task = unsafe { std::mem::transmute(task) };
        // SAFETY: the gate is closed and nobody within, so nobody reads `task`.
        unsafe { *shared.task.get() = Some(task) };
        shared.gate.open();
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        shared.gate.close();
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.gate.stop();
        for thread in self.threads.drain(..) {
            // A worker catches its panics, so it ends in order.
            let _ = thread.join();
        }
    }
}

/// The life of worker `worker`.
fn work(shared: &Shared, worker: usize) {
    let mut last = 0;
    while let Some(region) = shared.gate.enter(last) {
        last = region;
        // SAFETY: within the gate `task` is not written.
        let task = unsafe { *shared.task.get() };
        let result = catch_unwind(AssertUnwindSafe(|| task.expect("a region has a task")(worker)));
        if let Err(panic) = result {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        shared.gate.leave();
    }
}

/// Counts a worker as busy, also while it unwinds.
struct AtWork<'a>(&'a AtomicUsize);

impl<'a> AtWork<'a> {
    fn new(busy: &'a AtomicUsize) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        AtWork(busy)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_item_is_done_once() {
        for workers in [1, 2, 5] {
            let mut pool = Pool::new(workers).unwrap();
            for round in 0..2000 {
                let items = round % 37;
                let done: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(
                    items,
                    || false,
                    |worker, item| {
                        assert!(worker < workers);
                        done[item].fetch_add(1, Ordering::Relaxed);
                    },
                );
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if round % 400 == 0 {
                    // Long enough for the workers to fall asleep.
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    fn workers_share_the_items() {
        let mut pool = Pool::new(2).unwrap();
        let workers = Mutex::new(std::collections::BTreeSet::new());
        pool.for_each(
            100,
            || false,
            |worker, _| {
                workers.lock().unwrap().insert(worker);
                std::thread::sleep(Duration::from_millis(1));
            },
        );
        assert_eq!(workers.into_inner().unwrap().len(), 2);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(3).unwrap();
        for culprit in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.for_each(20, || false, |_, item| assert!(item != culprit, "item {culprit}"));
            }));
            let panic = result.unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("item {culprit}"));
            let done = AtomicUsize::new(0);
            pool.for_each(
                20,
                || false,
                |_, _| {
                    done.fetch_add(1, Ordering::Relaxed);
                },
            );
            assert_eq!(done.into_inner(), 20);
        }
    }

    #[test]
    fn assist_is_called_only_while_others_work() {
        let mut pool = Pool::new(2).unwrap();
        let at_work = AtomicBool::new(false);
        let assisted = AtomicUsize::new(0);
        let assist = || {
            assisted.fetch_add(1, Ordering::Relaxed);
            true
        };
        // Two items of which the first to be claimed takes long: `for_each` must end all the same.
        pool.for_each(2, assist, |_, _| {
            if !at_work.swap(true, Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        pool.for_each(0, assist, |_, _| unreachable!());
        let total = assisted.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(assisted.load(Ordering::Relaxed), total);
    }
}
