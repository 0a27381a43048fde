//! The threads of the CPU backend: fork/join regions, dull and cheap.
//!
//! A region runs one closure on every thread and ends when all have returned. Work within a region
//! is claimed item by item from a counter rather than divided beforehand: a neighbour that takes
//! a core for a while then delays one item, not half a layer. Which thread computes an item alters no
//! bit of it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::gate::Gate;

/// What a region runs, its lifetime erased for the time of the region.
type Task = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Number of the current region; a change starts it.
    region: Gate,
    /// Threads, the caller aside, that have not left the current region.
    inside: Gate,
    /// The region's closure: written before `region` changes, read by threads that saw the change.
    task: UnsafeCell<Option<Task>>,
    /// The first panic of the region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: `task` is written only by the holder of `&mut Pool` while no thread is in a region, and
// read by others only within one; the gates order the two.
unsafe impl Sync for Shared {}
// SAFETY: the closure behind `task` is `Sync`.
unsafe impl Send for Shared {}

/// Persistent threads. The thread that starts a region is its worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    regions: usize,
}

impl Pool {
    /// A pool of `num_workers` workers, the caller included.
    pub fn new(num_workers: usize) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            region: Gate::default(),
            inside: Gate::default(),
            task: UnsafeCell::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, threads: Vec::new(), regions: 0 };
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

    /// Runs `task(worker)` on every worker; returns when all have returned. A worker's panic is raised again
    /// here.
    pub fn run(&mut self, task: impl Fn(usize) + Sync) {
        if self.threads.is_empty() {
            return task(0);
        }
        let erased: &(dyn Fn(usize) + Sync) = &task;
        // SAFETY: only the lifetime changes. `leave` below waits, also when worker 0 panics, until no
        // thread will touch the closure again.
        let erased: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(erased) };
        // SAFETY: no region is running, so no thread reads `task`.
        unsafe { *self.shared.task.get() = Some(erased) };
        self.shared.inside.set(self.threads.len());
        self.regions += 1;
        self.shared.region.set(self.regions);
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        self.shared.inside.wait(|inside| inside == 0);
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Runs `work(worker, item)` for each of `items` items. A worker that finds no item left calls
    /// `assist` for as long as it says true and others are at work.
    pub fn for_each(
        &mut self,
        items: usize,
        assist: impl Fn() -> bool + Sync,
        work: impl Fn(usize, usize) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let busy = AtomicUsize::new(self.num_workers());
        self.run(|worker| {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                work(worker, item);
            }
            busy.fetch_sub(1, Ordering::Relaxed);
            while busy.load(Ordering::Relaxed) > 0 && assist() {}
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.region.set(self.regions + 1);
        for thread in self.threads.drain(..) {
            // A worker catches its panics, so it ends in order.
            let _ = thread.join();
        }
    }
}

/// The life of worker `worker`.
fn work(shared: &Shared, worker: usize) {
    let mut done = 0;
    loop {
        done = shared.region.wait(|region| region != done);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: within a region `task` is not written.
        let task = unsafe { *shared.task.get() };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let task = task.expect("a region has a task");
            // SAFETY: the caller of `run` keeps the closure alive until `inside` is zero.
            unsafe { (*task)(worker) }
        }));
        if let Err(panic) = result {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        shared.inside.count_down();
    }
}

#[cfg(test)]
mod tests {
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
                    |_, item| {
                        done[item].fetch_add(1, Ordering::Relaxed);
                    },
                );
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if round % 400 == 0 {
                    // Long enough for the workers to fall asleep.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(3).unwrap();
        for culprit in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker| assert!(worker != culprit, "worker {culprit}"));
            }));
            let panic = result.unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("worker {culprit}"));
            let ran = AtomicUsize::new(0);
            pool.run(|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn assist_is_called_only_while_others_work() {
        let mut pool = Pool::new(2).unwrap();
        let finished = AtomicBool::new(false);
        let assisted = AtomicUsize::new(0);
        let assist = || {
            assisted.fetch_add(1, Ordering::Relaxed);
            true
        };
        pool.for_each(1, assist, |_, _| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            finished.store(true, Ordering::Relaxed);
        });
        assert!(finished.load(Ordering::Relaxed) && assisted.load(Ordering::Relaxed) > 0);
    }
}
