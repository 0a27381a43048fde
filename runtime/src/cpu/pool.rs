//! Thread pool of the CPU backend: fork/join parallel regions.
//!
//! Work items are claimed one by one from a counter, and threads that arrive late are not waited
//! for: another process that takes a core for a while delays one item, not half a layer. The result
//! of an item does not depend on the thread that computes it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::fork_join_latch::ForkJoinLatch;

/// The closure of a region, with its lifetime erased for the duration of the region.
type Task = &'static (dyn Fn(usize) + Sync);

struct Shared {
    latch: ForkJoinLatch,
    /// Closure of the region: written before the latch opens, read by workers inside.
    task: UnsafeCell<Option<Task>>,
    /// Payload of the region's first panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written only by the holder of `&mut Pool` while no worker is inside the latch,
// and read by workers only inside; the latch orders both accesses.
unsafe impl Sync for Shared {}

/// A pool of persistent threads. The thread that starts a region is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts a pool of `num_workers` workers, including the caller.
    pub fn new(num_workers: usize) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            latch: ForkJoinLatch::new(),
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

    /// Number of workers, including the caller.
    pub fn num_workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `work(worker, item)` once for each of `items` items, and returns when all are done. A
    /// worker without an item left calls `assist` as long as it returns true and another worker is
    /// busy. `assist` must eventually return false. A panic of `work` is propagated to the caller.
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
            let busy_worker = BusyWorker::new(&busy);
            claim_all(worker);
            drop(busy_worker);
            while busy.load(Ordering::Relaxed) > 0 {
                // An assisting worker counts as busy, so that the others may assist too.
                let _busy = BusyWorker::new(&busy);
                if !assist() {
                    break;
                }
            }
        });
    }

    /// Runs `task(worker)` on the caller, and on the workers that arrive before the caller's part
    /// has returned.
    fn region(&mut self, task: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. `close` below waits, also after a panic, until all
        // workers that have read the closure have left the region.
        let task: Task = unsafe { std::mem::transmute(task) };
        // SAFETY: the latch is closed and no worker is inside, so no thread reads `task`.
        unsafe { *shared.task.get() = Some(task) };
        shared.latch.open();
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        shared.latch.close();
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.latch.stop();
        for thread in self.threads.drain(..) {
            // A worker catches all panics of its tasks, so `join` cannot fail.
            let _ = thread.join();
        }
    }
}

/// Main loop of worker `worker`.
fn work(shared: &Shared, worker: usize) {
    let mut last = 0;
    while let Some(region) = shared.latch.enter(last) {
        last = region;
        // SAFETY: this worker is inside the latch, where `task` is not written.
        let task = unsafe { *shared.task.get() };
        let result = catch_unwind(AssertUnwindSafe(|| task.expect("a region has a task")(worker)));
        if let Err(panic) = result {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        shared.latch.leave();
    }
}

/// Guard that counts a worker as busy until it is dropped, also by unwinding.
struct BusyWorker<'a>(&'a AtomicUsize);

impl<'a> BusyWorker<'a> {
    fn new(busy: &'a AtomicUsize) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        BusyWorker(busy)
    }
}

impl Drop for BusyWorker<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits until two items have begun, so that each of two threads gets one.
    fn await_two(begun: &AtomicUsize) {
        let begin = Instant::now();
        while begun.load(Ordering::Relaxed) < 2 {
            assert!(begin.elapsed() < Duration::from_secs(60), "the other thread has no item");
            std::thread::yield_now();
        }
    }

    #[test]
    fn every_item_is_done_once() {
        for workers in [1, 2, 5] {
            let mut pool = Pool::new(workers).unwrap();
            for round in 0..if cfg!(miri) { 20 } else { 2000 } {
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

    /// The worker's item takes longer than the caller spins.
    #[test]
    fn a_caller_that_fell_asleep_is_woken_by_the_last_worker() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..20 {
            let begun = AtomicUsize::new(0);
            let work = |worker: usize, _: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                await_two(&begun);
                std::thread::sleep(Duration::from_millis(5 * worker as u64));
            };
            pool.for_each(2, || false, work);
            assert_eq!(begun.into_inner(), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(3).unwrap();
        for culprit in 0..if cfg!(miri) { 2 } else { 20 } {
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
    fn a_panic_of_a_worker_alone_reaches_the_caller() {
        let mut pool = Pool::new(2).unwrap();
        let begun = AtomicUsize::new(0);
        let work = |worker: usize, _: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            await_two(&begun);
            assert!(worker == 0, "the worker");
        };
        let result = catch_unwind(AssertUnwindSafe(|| pool.for_each(2, || false, work)));
        assert!(result.is_err());
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
        // Two items, the first of which takes long: `for_each` must still end.
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
