//! One budget for the memory of connections and of bodies that are not tokenized yet.
//!
//! Without it, clients that send half a request and stop would take memory until none is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// Share of a connection, KiB: its task, its header of at most half of this, its buffers.
const CONNECTION_KIB: u32 = 32;
/// The budget for each connection, KiB: its share, and a body of 64 KiB.
const KIB_PER_CONNECTION: usize = 96;
/// Memory that was given back since the last release of free pages when the next is due, KiB.
const RELEASE_KIB: usize = 8 << 10;
/// Pause before a release, in which other memory is given back too.
const RELEASE_PAUSE: Duration = Duration::from_secs(1);

/// The budget of one server.
pub(crate) struct MemoryBudget {
    free: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    /// Least free KiB since the last release of free pages.
    least_free: AtomicUsize,
    released: Notify,
}

/// A part of the budget, and of the connections if it is one's; free again when dropped.
pub(crate) struct Held {
    budget: Arc<MemoryBudget>,
    kib: Option<OwnedSemaphorePermit>,
    connection: Option<OwnedSemaphorePermit>,
}

impl MemoryBudget {
    /// The budget of a server with at most `connections`.
    pub(crate) fn new(connections: usize) -> Arc<Self> {
        let kib = connections.saturating_mul(KIB_PER_CONNECTION).min(Semaphore::MAX_PERMITS);
        Arc::new(MemoryBudget {
            free: Arc::new(Semaphore::new(kib)),
            connections: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            least_free: AtomicUsize::new(kib),
            released: Notify::new(),
        })
    }

    /// The share of one more connection, if there is room.
    pub(crate) fn connection(self: &Arc<Self>) -> Option<Held> {
        let connection = self.connections.clone().try_acquire_owned().ok()?;
        let mut held = self.take(CONNECTION_KIB)?;
        held.connection = Some(connection);
        Some(held)
    }

    /// A share of `bytes` of a body, if there is room.
    pub(crate) fn body(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        self.take(bytes.div_ceil(1 << 10) as u32)
    }

    fn take(self: &Arc<Self>, kib: u32) -> Option<Held> {
        let kib = self.free.clone().try_acquire_many_owned(kib).ok()?;
        self.least_free.fetch_min(self.free.available_permits(), Relaxed);
        Some(Held { budget: self.clone(), kib: Some(kib), connection: None })
    }

    /// Asks for the release of the free pages of memory that was given back.
    pub(crate) fn request_release(&self) {
        self.released.notify_one();
    }

    /// Returns free pages to the system when they were asked for. Never completes.
    pub(crate) async fn release_memory(self: Arc<Self>) {
        loop {
            self.released.notified().await;
            sleep(RELEASE_PAUSE).await;
            self.least_free.store(self.free.available_permits(), Relaxed);
            // Fails only if the release panicked, which the panic hook has reported.
            let _ = tokio::task::spawn_blocking(trail_platform::heap::release_free_pages).await;
        }
    }
}

impl Held {
    /// Adds `more`.
    pub(crate) fn merge(&mut self, mut more: Held) {
        match (&mut self.kib, more.kib.take()) {
            (Some(kib), Some(more)) => kib.merge(more),
            (kib, more) => *kib = kib.take().or(more),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop((self.kib.take(), self.connection.take()));
        let free = self.budget.free.available_permits();
        if free >= self.budget.least_free.load(Relaxed) + RELEASE_KIB {
            self.budget.request_release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn connections_and_bodies_share_one_budget() {
        let budget = MemoryBudget::new(2);
        let first = budget.connection().expect("room");
        let mut body = budget.body(128 << 10).expect("room");
        assert!(budget.connection().is_some());
        body.merge(budget.body(32 << 10).expect("room"));
        assert!(budget.body(1).is_none() && budget.connection().is_none());
        drop(body);
        let second = budget.connection().expect("room");
        assert!(budget.connection().is_none(), "two connections");
        assert!(budget.body(64 << 10).is_some());
        drop((first, second));
        assert_eq!(budget.free.available_permits(), 2 * KIB_PER_CONNECTION);
    }

    #[test]
    fn pages_are_released_after_much_memory() {
        let budget = MemoryBudget::new(1000);
        let is_due = || budget.released.notified().now_or_never().is_some();
        drop(budget.body(1 << 20));
        assert!(!is_due());
        let held: Vec<_> = (0..300).map(|_| budget.connection()).collect();
        assert!(!is_due());
        drop(held);
        assert!(is_due());
    }
}
