//! Thread pool of the CPU backend: fork/join parallel regions.
//!
//! Work items are claimed one by one (`claims`), and threads that arrive late are not waited
//! for: another process that takes a core for a while delays one item, not half a layer. The result
//! of an item does not depend on the thread that computes it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use trail_platform::Cpu;

use super::affinity;
use super::claims::Claims;
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
    /// CPU of each worker; empty where they are not pinned.
    cpus: Vec<Cpu>,
    claims: Claims,
    /// Regions so far.
    regions: u64,
}

impl Pool {
    /// Starts a pool of `num_workers` workers, including the caller, which are pinned to no CPU.
    pub fn new(num_workers: usize) -> Result<Self, String> {
        Pool::start(num_workers, Vec::new())
    }

    /// The same, each worker on one CPU of [`placement`](super::placement). The caller is pinned by
    /// each region that it starts, until [`release_caller`](Self::release_caller) or the end of the
    /// pool.
    pub fn pinned(num_workers: usize) -> Result<Self, String> {
        let cpus = affinity::placement(num_workers);
        Pool::start(num_workers, cpus.map_err(|why| format!("--cpu-strict 1: {why}"))?)
    }

    /// Of workers on `cpus`, or on any where it is empty.
    pub(super) fn start(num_workers: usize, cpus: Vec<Cpu>) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            latch: ForkJoinLatch::new(),
            task: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let claims = Claims::new(num_workers.max(1), &cpus);
        let mut pool = Pool { shared, threads: Vec::new(), cpus, claims, regions: 0 };
        let (started, starts) = mpsc::channel();
        for worker in 1..num_workers {
            let shared = pool.shared.clone();
            let pinned = pool.cpus.get(worker).map(|cpu| (cpu.id, started.clone()));
            let thread = std::thread::Builder::new()
                .name(format!("trail-cpu-{worker}"))
                .spawn(move || {
                    if let Some((cpu, started)) = pinned {
                        // It has a receiver, unless another thread could not be started.
                        let _ = started.send(affinity::pin(cpu));
                    }
                    work(&shared, worker);
                })
                .map_err(|error| format!("cannot start worker {worker}: {error}"))?;
            pool.threads.push(thread);
        }
        drop(started);
        starts.iter().collect::<Result<(), String>>()?;
        Ok(pool)
    }

    /// The CPU of each worker; empty where they are not pinned.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Number of NUMA nodes whose workers claim items of their own first.
    pub(super) fn nodes(&self) -> usize {
        self.claims.nodes()
    }

    /// Calls `work(node)` for each of [`nodes`](Self::nodes), on one of its CPUs: the caller moves
    /// there and back, as the workers of another node may be asleep for the length of a region.
    pub(super) fn on_each_node(&self, mut work: impl FnMut(usize)) {
        for node in 0..self.nodes() {
            self.pin_caller(self.claims.worker_of(node));
            work(node);
        }
        self.pin_caller(0);
    }

    /// Moves the caller to the CPU of `worker`, if workers are pinned.
    fn pin_caller(&self, worker: usize) {
        if let Some(cpu) = self.cpus.get(worker) {
            // Where it fails the thread is slower, and as correct.
            let _ = affinity::pin(cpu.id);
        }
    }

    /// Gives the calling thread, where it was pinned as worker 0, the affinity of the process back:
    /// before it starts other threads, which would share its CPU.
    pub fn release_caller(&self) {
        if !self.cpus.is_empty() {
            affinity::release();
        }
    }

    /// Number of workers, including the caller.
    pub fn num_workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Number of regions so far in which several threads took part: forks and joins.
    pub fn regions(&self) -> u64 {
        self.regions
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
        self.pin_caller(0);
        self.claims.begin(items);
        let claims = &self.claims;
        let claim_all = |worker: usize| {
            while let Some(item) = claims.claim(worker) {
                work(worker, item);
            }
        };
        if self.threads.is_empty() || items == 0 {
            return claim_all(0);
        }
        self.regions += 1;
        let busy = AtomicUsize::new(0);
        let task = |worker: usize| {
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
        };
        // SAFETY: `self` is borrowed exclusively, so no other region is open.
        unsafe { region(&self.shared, &task) };
    }
}

/// Runs `task(worker)` on the caller, and on the workers that arrive before the caller's part has
/// returned.
///
/// # Safety
///
/// No other region of the pool may be open.
unsafe fn region(shared: &Shared, task: &(dyn Fn(usize) + Sync)) {
    // SAFETY: only the lifetime changes. `close` below waits, also after a panic, until all workers
    // that have read the closure have left the region.
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

impl Drop for Pool {
    fn drop(&mut self) {
        self.release_caller();
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
mod tests;
