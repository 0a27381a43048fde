//! A body's share of the bounds, and the work that is done under it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::body_limits::{BodyLimits, LargeShare};
use crate::error::ApiError;
use crate::lane::Share;
use crate::memory_budget::Held;
use crate::process_limits::lower_thread_priority;

/// Nice value of the thread that parses and tokenizes a large body: a quarter of a core that an
/// engine thread wants too, so that the text of a 128k context is not held up for a minute.
const LARGE_NICE: i32 = 5;

/// A body's share of the bounds, from its reading to the last use of its text.
pub(crate) struct BodyPermit {
    pub body_limits: Arc<BodyLimits>,
    /// Length of the body, bytes.
    pub size: usize,
    small: Option<Held>,
    large: Option<Share>,
    rest: Option<Share>,
    turn: Option<Turn>,
}

/// A place on the threads that parse and tokenize; held for its drop.
#[allow(dead_code, reason = "held for its drop")]
enum Turn {
    Small(OwnedSemaphorePermit),
    Large(Share),
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if self.is_large() {
            self.body_limits.budget.request_release();
        }
    }
}

/// Tells long work whether its client has left.
pub(crate) type HasLeft<'a> = &'a dyn Fn() -> bool;

impl BodyPermit {
    /// The permit of a body that holds nothing yet.
    pub(crate) fn new(body_limits: Arc<BodyLimits>) -> Self {
        BodyPermit { body_limits, size: 0, small: None, large: None, rest: None, turn: None }
    }

    /// Adds a share of the memory of small bodies.
    pub(crate) fn hold(&mut self, share: Held) {
        match &mut self.small {
            Some(small) => small.merge(share),
            None => self.small = Some(share),
        }
    }

    /// Adds a share of the memory of large bodies.
    pub(crate) fn hold_large(&mut self, share: LargeShare) {
        match (share, &mut self.large) {
            (LargeShare::Rest(rest), _) => self.rest = Some(rest),
            (LargeShare::Bytes(share), Some(large)) => large.merge(share),
            (LargeShare::Bytes(share), None) => self.large = Some(share),
        }
    }

    /// Returns true if the body has room for all that comes.
    pub(crate) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Returns true for a body that is parsed off the connection's thread.
    pub(crate) fn is_large(&self) -> bool {
        self.large.is_some() || self.rest.is_some()
    }

    /// Waits for a place on the threads; shorter large bodies come first.
    async fn wait_for_turn(&self) -> Result<Turn, ApiError> {
        let limits = &self.body_limits;
        if self.is_large() {
            return limits.large.acquire(self.size, 1).await.map(Turn::Large);
        }
        let turn = limits.small.clone().acquire_owned().await;
        turn.map(Turn::Small).map_err(|_| ApiError::interrupted())
    }

    /// Gives its place on the threads back; the next [`run`](Self::run) waits for one again.
    pub(crate) fn give_back_turn(&mut self) {
        self.turn = None;
    }

    /// Runs `work` off the threads that serve connections. A small body waits for one of a few
    /// threads, a large one for its turn, which it keeps until the permit is dropped. Work that has
    /// begun holds the permit to its end, also when the client has left.
    pub(crate) async fn run<T: Send + 'static>(
        mut self,
        work: impl FnOnce(HasLeft) -> T + Send + 'static,
    ) -> Result<(T, BodyPermit), ApiError> {
        if self.turn.is_none() {
            self.turn = Some(self.wait_for_turn().await?);
        }
        let is_large = self.is_large();
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            let done = work(&|| sender.is_closed());
            // Fails if the client has left: the permit is dropped here.
            let _ = sender.send((done, self));
        };
        if is_large {
            at_low_priority(job)?;
        } else {
            tokio::task::spawn_blocking(job);
        }
        // The sender is dropped only if the work panicked, which the panic hook has reported.
        receiver.await.map_err(|_| ApiError::interrupted())
    }
}

/// Runs `job` on a new thread: a priority, once lowered, cannot be raised again, so it must
/// not be lowered on a thread of the pool.
fn at_low_priority(job: impl FnOnce() + Send + 'static) -> Result<(), ApiError> {
    let thread = std::thread::Builder::new().name("trail-body".into());
    let spawned = thread.spawn(|| {
        lower_thread_priority(LARGE_NICE);
        job();
    });
    spawned
        .map(drop)
        .map_err(|_| ApiError::too_many("the system has no thread left: try again later"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::memory_budget::MemoryBudget;

    #[tokio::test(flavor = "multi_thread")]
    async fn large_bodies_take_turns_and_keep_them_when_the_client_leaves() {
        let lane = crate::lane::Lane::new(2, Duration::from_secs(60));
        let limits = BodyLimits::new(1, Duration::from_secs(60), MemoryBudget::new(1));
        let permit = || async {
            let mut permit = BodyPermit::new(limits.clone());
            permit.hold_large(LargeShare::Bytes(lane.acquire(0, 1).await.expect("free")));
            permit
        };
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = oneshot::channel();
        let (reported, reports) = oneshot::channel();
        let first = permit().await.run(move |has_left| {
            let _ = begun.send(());
            let _ = held.recv();
            let _ = reported.send(has_left());
        });
        let first = tokio::spawn(async { first.await.map(drop) });
        begins.await.expect("the work begins");
        first.abort();
        let _ = first.await;
        let mut second = Box::pin(permit().await.run(|has_left| has_left()));
        assert!((&mut second).now_or_never().is_none(), "the first has not ended");
        assert_eq!(lane.free(), 0);
        release.send(()).expect("the work goes on");
        assert_eq!(reports.await, Ok(true), "the client has left");
        let (has_left, permit) = second.await.expect("its turn");
        assert!(!has_left);
        drop(permit);
        assert_eq!(lane.free(), 2);
    }
}
