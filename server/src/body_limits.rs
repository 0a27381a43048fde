//! Bounds on the memory and processor time of bodies that are read, parsed and tokenized at once.
//!
//! Parsing and tokenizing take up to a hundred times the bytes of a body, before the engine has
//! counted the request. Small bodies are read at once, and their text is tokenized on as many
//! threads as the machine has. Large ones wait for a share of [`LARGE_BYTES`] before they are read,
//! and for their turn, one at a time and at low priority, to be parsed and tokenized: what they may
//! take does not grow with their number, and the engine's threads come first.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{BodyDataStream, HttpBody};
use axum::extract::Request;
use futures_util::StreamExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::error::ApiError;
use crate::lifecycle::{Lifecycle, Phase};

/// Largest request body, bytes. A context of 128 Ki tokens is under 1 MiB as text or as ids.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Longest body that needs no permit, bytes. Prompts of most requests are shorter.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of large bodies that are held at once, read or being read: four of the largest.
const LARGE_BYTES: usize = 4 * MAX_BODY_BYTES;
/// Large bodies that wait to be read; one more is refused with 429.
const MAX_WAITING: usize = 256;
/// Bytes of a body that is refused which are read all the same, for its client to get the answer: a
/// connection closed on unread bytes is reset, which loses what was sent last.
const MAX_DISCARDED: usize = 4 * MAX_BODY_BYTES;
/// Time for the body of a refused request to arrive.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Unit of the permits, bytes.
const UNIT: usize = 1 << 10;
/// Nice value of the thread that parses and tokenizes a large body: a quarter of a core that an
/// engine thread wants too, so that the text of a 128k context is not held up for a minute.
const LARGE_NICE: i32 = 5;
/// Pause between the end of a large body and the release of its memory, in which others end too.
const RELEASE_PAUSE: Duration = Duration::from_secs(1);

/// The bounds of one server.
pub(crate) struct BodyLimits {
    /// Bytes of large bodies, in units.
    bytes: Arc<Semaphore>,
    /// Places in the queue for `bytes`.
    queue: Semaphore,
    /// Threads that tokenize small bodies.
    small: Arc<Semaphore>,
    /// The thread that parses and tokenizes large bodies.
    large: Arc<Semaphore>,
    body_timeout: Duration,
    /// Notified when the memory of a large body is free.
    freed: Notify,
}

/// A body's share of the bounds, from its reading to the last use of its text.
pub(crate) struct BodyPermit {
    body_limits: Arc<BodyLimits>,
    /// Bytes of a large body; `None` for a small one.
    bytes: Option<OwnedSemaphorePermit>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if self.bytes.is_some() {
            self.body_limits.freed.notify_one();
        }
    }
}

impl BodyLimits {
    /// Bounds for a machine of `threads` hardware threads; `body_timeout` limits the reading.
    pub(crate) fn new(threads: usize, body_timeout: Duration) -> Arc<Self> {
        Arc::new(BodyLimits {
            bytes: Arc::new(Semaphore::new(LARGE_BYTES / UNIT)),
            queue: Semaphore::new(MAX_WAITING),
            small: Arc::new(Semaphore::new(threads)),
            large: Arc::new(Semaphore::new(1)),
            body_timeout,
            freed: Notify::new(),
        })
    }

    /// Reads the body of `request`. Refused are a body over [`MAX_BODY_BYTES`], one that takes too
    /// long, one beyond the queue, and any that is incomplete when the server starts to drain.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        request: Request,
        lifecycle: &Lifecycle,
    ) -> Result<(Vec<u8>, BodyPermit), ApiError> {
        tokio::select! {
            received = self.read(request) => received,
            () = lifecycle.reached(Phase::Draining) => Err(ApiError::draining()),
        }
    }

    async fn read(self: &Arc<Self>, request: Request) -> Result<(Vec<u8>, BodyPermit), ApiError> {
        let body = request.into_body();
        // Without a Content-Length a body may have any length.
        let declared = body.size_hint().exact().map_or(MAX_BODY_BYTES, |bytes| bytes as usize);
        let (mut chunks, mut bytes) = (body.into_data_stream(), Vec::new());
        if declared > MAX_BODY_BYTES {
            return Err(self.refuse_rest(chunks).await);
        }
        let mut permit = BodyPermit { body_limits: self.clone(), bytes: None, turn: None };
        if !self.fill(&mut chunks, &mut bytes, SMALL_BYTES).await? {
            permit.bytes = Some(self.wait_for(declared).await?);
            bytes.reserve_exact(declared.saturating_sub(bytes.len()));
            if !self.fill(&mut chunks, &mut bytes, MAX_BODY_BYTES).await? {
                drop((bytes, permit));
                return Err(self.refuse_rest(chunks).await);
            }
        }
        Ok((bytes, permit))
    }

    /// Appends chunks until the body ends, which returns true, or `bytes` has more than `most`.
    async fn fill(
        &self,
        chunks: &mut BodyDataStream,
        bytes: &mut Vec<u8>,
        max: usize,
    ) -> Result<bool, ApiError> {
        let read = async {
            while bytes.len() <= max {
                match chunks.next().await {
                    None => return Ok(true),
                    Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
                    Some(Err(error)) => {
                        return Err(ApiError::invalid(format!("cannot read the body: {error}")));
                    }
                }
            }
            Ok(false)
        };
        timeout(self.body_timeout, read).await.unwrap_or_else(|_| {
            let seconds = self.body_timeout.as_secs();
            Err(ApiError::timed_out(format!("the body was not complete after {seconds} s")))
        })
    }

    /// Returns the error of a body over the limit, once a bounded part of its rest is read.
    async fn refuse_rest(&self, chunks: BodyDataStream) -> ApiError {
        // A slow client has had its time.
        let _ = timeout(self.body_timeout, discard(chunks)).await;
        ApiError::too_large(format!("the body has more than {MAX_BODY_BYTES} bytes"))
    }

    /// Reads a bounded part of the body of a request that is refused whatever it says.
    pub(crate) async fn discard(request: Request) {
        // Not for a slow client: the server may be about to end.
        let _ = timeout(DISCARD_TIMEOUT, discard(request.into_body().into_data_stream())).await;
    }

    /// Waits for a share of [`LARGE_BYTES`].
    async fn wait_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let full = "too many large requests are waiting already: try again later";
        let _place = self.queue.try_acquire().map_err(|_| ApiError::too_many(full))?;
        let units = bytes.div_ceil(UNIT) as u32;
        let permit = self.bytes.clone().acquire_many_owned(units).await;
        permit.map_err(|_| ApiError::interrupted())
    }

    /// Returns memory to the system after large bodies. Never completes.
    pub(crate) async fn release_memory(self: Arc<Self>) {
        loop {
            self.freed.notified().await;
            sleep(RELEASE_PAUSE).await;
            // Fails only if the release panicked, which the panic hook has reported.
            let _ = tokio::task::spawn_blocking(trail_platform::heap::release_free_pages).await;
        }
    }
}

/// Reads at most [`MAX_DISCARDED`] bytes.
async fn discard(mut chunks: BodyDataStream) {
    let mut left = MAX_DISCARDED;
    while left > 0 {
        let Some(Ok(chunk)) = chunks.next().await else { return };
        left = left.saturating_sub(chunk.len());
    }
}

/// Tells long work whether its client has left.
pub(crate) type HasLeft<'a> = &'a dyn Fn() -> bool;

impl BodyPermit {
    /// Returns true for a body that is parsed off the connection's thread.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.is_some()
    }

    /// Runs `work` off the threads that serve connections. A small body waits for one of a few
    /// threads, a large one for its turn, which it keeps until the permit is dropped. Work that has
    /// begun holds the permit to its end, also when the client has left.
    pub(crate) async fn run<T: Send + 'static>(
        mut self,
        work: impl FnOnce(HasLeft) -> T + Send + 'static,
    ) -> Result<(T, BodyPermit), ApiError> {
        if self.turn.is_none() {
            let lane =
                if self.is_large() { &self.body_limits.large } else { &self.body_limits.small };
            let turn = lane.clone().acquire_owned().await;
            self.turn = Some(turn.map_err(|_| ApiError::interrupted())?);
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
    let thread = std::thread::Builder::new().name("trail-body_limits".into());
    let spawned = thread.spawn(|| {
        // Of the thread alone on Linux. A failure costs priority, not the answer.
        let _ = rustix::process::setpriority_process(None, LARGE_NICE);
        job();
    });
    spawned
        .map(drop)
        .map_err(|_| ApiError::too_many("the system has no thread left: try again later"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn body_limits() -> Arc<BodyLimits> {
        BodyLimits::new(1, Duration::from_secs(60))
    }

    #[test]
    fn a_body_beyond_the_queue_is_refused() {
        let body_limits = body_limits();
        let all =
            body_limits.wait_for(LARGE_BYTES).now_or_never().expect("free").expect("a permit");
        let mut waiting: Vec<_> =
            (0..MAX_WAITING).map(|_| Box::pin(body_limits.wait_for(1))).collect();
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_none()));
        let refused = body_limits.wait_for(1).now_or_never().expect("no wait");
        assert_eq!(
            refused.err(),
            Some(ApiError::too_many(
                "too many large requests are waiting already: try again later"
            ))
        );
        drop(all);
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_some_and(|w| w.is_ok())));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn large_bodies_take_turns_and_keep_them_when_the_client_leaves() {
        let body_limits = body_limits();
        let permit = || {
            let bytes = body_limits.bytes.clone().try_acquire_many_owned(1).expect("free");
            BodyPermit { body_limits: body_limits.clone(), bytes: Some(bytes), turn: None }
        };
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = oneshot::channel();
        let (reported, reports) = oneshot::channel();
        let first = permit().run(move |has_left| {
            let _ = begun.send(());
            let _ = held.recv();
            let _ = reported.send(has_left());
        });
        let first = tokio::spawn(async { first.await.map(drop) });
        begins.await.expect("the work begins");
        first.abort();
        let _ = first.await;
        let mut second = Box::pin(permit().run(|has_left| has_left()));
        assert!((&mut second).now_or_never().is_none(), "the first has not ended");
        assert_eq!(body_limits.bytes.available_permits(), LARGE_BYTES / UNIT - 2);
        release.send(()).expect("the work goes on");
        assert_eq!(reports.await, Ok(true), "the client has left");
        let (has_left, permit) = second.await.expect("its turn");
        assert!(!has_left);
        drop(permit);
        assert_eq!(body_limits.bytes.available_permits(), LARGE_BYTES / UNIT);
        assert!(body_limits.freed.notified().now_or_never().is_some());
    }
}
