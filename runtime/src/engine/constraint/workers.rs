//! The threads on which matchers run.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::ConstrainedAnswer;

/// Most threads: masks of a step are computed while it runs, so few are needed.
const MAX_THREADS: usize = 4;

/// Threads that keep the masks of constrained answers ready. They start with the first such
/// request.
pub(in crate::engine) struct MaskWorkers {
    jobs: Arc<Jobs>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Jobs {
    queues: Mutex<Queues>,
    ready: Condvar,
}

/// An answer is in one of the queues at the most.
struct Queues {
    /// Answers with a token to accept: first, as the engine waits for what is forced.
    accept: VecDeque<Arc<ConstrainedAnswer>>,
    /// Answers whose mask is to be computed.
    mask: VecDeque<Arc<ConstrainedAnswer>>,
    is_stopped: bool,
}

impl MaskWorkers {
    /// Workers for at most `requests` requests.
    pub(in crate::engine) fn new(requests: usize) -> Arc<MaskWorkers> {
        let queue = || VecDeque::with_capacity(requests);
        let queues = Queues { accept: queue(), mask: queue(), is_stopped: false };
        let jobs = Jobs { queues: Mutex::new(queues), ready: Condvar::new() };
        Arc::new(MaskWorkers { jobs: Arc::new(jobs), threads: Mutex::default() })
    }

    /// Starts the threads, unless they run.
    pub(in crate::engine) fn start(&self) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        while threads.len() < (cores / 2).clamp(1, MAX_THREADS) {
            let jobs = self.jobs.clone();
            let builder = thread::Builder::new().name("trail-mask".into());
            threads.push(builder.spawn(move || jobs.work())?);
        }
        Ok(())
    }

    /// Takes `token`, the next one of `answer`.
    pub(in crate::engine) fn take(&self, answer: &Arc<ConstrainedAnswer>, token: u32) {
        if !answer.take(token) {
            return;
        }
        self.jobs.lock().accept.push_back(answer.clone());
        self.jobs.ready.notify_one();
    }
}

impl Drop for MaskWorkers {
    fn drop(&mut self) {
        self.jobs.lock().is_stopped = true;
        self.jobs.ready.notify_all();
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A panic was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until the workers stop.
    fn work(&self) {
        let mut queues = self.lock();
        while !queues.is_stopped {
            if let Some(answer) = queues.accept.pop_front() {
                drop(queues);
                answer.accept();
                queues = self.lock();
                queues.mask.push_back(answer);
            } else if let Some(answer) = queues.mask.pop_front() {
                drop(queues);
                // First, as a token that comes from now on is not seen here.
                answer.leave_queue();
                answer.accept();
                answer.compute_mask();
                drop(answer);
                queues = self.lock();
            } else {
                queues = self.ready.wait(queues).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
