//! The threads that wait for tapped rows: the first stages and opens, all work.
//!
//! A thread that finds nothing spins, then yields, then sleeps until the engine's thread announces
//! the next rows.

use super::ring::Ring;
use crate::backend::{RowSink, TapRow};
use crate::cuda::error::CudaError;
use crate::cuda::near_cpus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Polls without a pause, and time of polls with a yield between, before a thread sleeps: about a
/// step, so that it sleeps only while no steps run.
const SPINS: u32 = 2000;
const YIELDING: Duration = Duration::from_millis(20);
/// Sleep between polls when nothing arrives and no thread will wake it.
const SLEEP: Duration = Duration::from_micros(100);

/// State that the threads share.
struct Shared {
    ring: Arc<Ring>,
    receiver: Arc<dyn RowSink>,
    /// Probabilities come from the device; otherwise activations.
    on_device: bool,
    stopping: AtomicBool,
    asleep: AtomicUsize,
}

/// The threads; they end when this is dropped.
pub(in crate::cuda) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// `count` threads, at least one, that feed `receiver` from `ring`, on `cpus` if there are any.
    pub(in crate::cuda) fn start(
        ring: Arc<Ring>,
        receiver: Arc<dyn RowSink>,
        on_device: bool,
        count: usize,
        cpus: &[usize],
    ) -> Result<Threads, CudaError> {
        let (stopping, asleep) = (AtomicBool::new(false), AtomicUsize::new(0));
        let shared = Arc::new(Shared { ring, receiver, on_device, stopping, asleep });
        let mut threads = Threads { shared, handles: Vec::new() };
        // Probabilities leave nothing to assist with.
        for index in 0..if on_device { 1 } else { count.max(1) } {
            let (shared, cpus) = (threads.shared.clone(), cpus.to_vec());
            let run = move || {
                near_cpus::bind(&cpus);
                let _guard = FailOnPanic(shared.receiver.clone());
                if index == 0 { shared.lead() } else { shared.follow() }
            };
            let spawned = thread::Builder::new().name(format!("trail-tap-{index}")).spawn(run);
            threads.handles.push(spawned.map_err(|error| CudaError::Unsupported {
                what: format!("a thread for tapped rows: {error}"),
                supported: "a machine with threads to spare".to_owned(),
            })?);
        }
        Ok(threads)
    }

    /// Wakes sleeping threads.
    pub(in crate::cuda) fn wake(&self) {
        if self.shared.asleep.load(Ordering::SeqCst) > 0 {
            self.handles.iter().for_each(|handle| handle.thread().unpark());
        }
    }
}

/// Tells the receiver when its thread panics: predictions would be awaited in vain.
struct FailOnPanic(Arc<dyn RowSink>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A receiver that panicked has said so itself.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// The first thread's work.
    fn lead(&self) {
        let (mut rows, mut probabilities) = (Vec::new(), Vec::new());
        while self.wait_for_work() {
            let Some(step) = self.ring.slots.next(&mut rows) else {
                // The rows announced last are overwritten already, or consumed.
                continue;
            };
            if self.wait_for_rows(step) {
                self.consume(step, &rows, &mut probabilities);
            }
            self.ring.slots.finish(step);
        }
    }

    /// The other threads' work.
    fn follow(&self) {
        let mut backoff = Backoff::new();
        while self.wait_for_work() {
            if self.receiver.assist() {
                backoff = Backoff::new();
            } else {
                backoff.pause();
            }
        }
    }

    /// Until there is something announced; false when it is time to end.
    fn wait_for_work(&self) -> bool {
        let mut backoff = Backoff::new();
        loop {
            if self.stopping.load(Ordering::SeqCst) {
                return false;
            }
            if self.ring.slots.is_busy() {
                return true;
            }
            if !backoff.is_over() {
                backoff.pause();
                continue;
            }
            self.asleep.fetch_add(1, Ordering::SeqCst);
            // A thread that announces after this check sees that this one sleeps.
            if !self.ring.slots.is_busy() && !self.stopping.load(Ordering::SeqCst) {
                thread::park();
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Until the rows of `step` are there; false if they never will be.
    fn wait_for_rows(&self, step: u64) -> bool {
        let mut backoff = Backoff::new();
        let pause = || {
            backoff.pause();
            !self.stopping.load(Ordering::SeqCst)
        };
        self.ring.slots.wait(step, || self.ring.is_there(step), pause)
    }

    fn consume(&self, step: u64, rows: &[TapRow], probabilities: &mut Vec<f32>) {
        if self.on_device {
            let copy = || {
                probabilities.clear();
                probabilities.extend_from_slice(self.ring.probabilities(step, rows.len()));
            };
            if self.ring.slots.take(step, copy) {
                self.receiver.publish_probabilities(step, rows, probabilities);
            }
            return;
        }
        consume(&self.ring, &*self.receiver, step, rows);
    }
}

/// Hands the activations of `step` over, and has them predicted from, unless they were overwritten
/// meanwhile.
pub(in crate::cuda) fn consume(ring: &Ring, receiver: &dyn RowSink, step: u64, rows: &[TapRow]) {
    // `stage` copies them, and does not use them before `predict`.
    let copy = || receiver.stage(step, rows, ring.activations(step, rows.len()));
    if ring.slots.take(step, copy) {
        receiver.predict();
    }
}

/// Backoff of a polling thread: spins, then yields, then sleeps.
struct Backoff {
    spins: u32,
    since: Option<Instant>,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { spins: 0, since: None }
    }

    fn is_over(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > YIELDING)
    }

    fn pause(&mut self) {
        if self.spins < SPINS {
            self.spins += 1;
            std::hint::spin_loop();
            return;
        }
        self.since.get_or_insert_with(Instant::now);
        if self.is_over() { thread::sleep(SLEEP) } else { thread::yield_now() }
    }
}
