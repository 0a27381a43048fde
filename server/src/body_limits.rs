//! Bounds on the memory and processor time of bodies that are read, parsed and tokenized at once.
//!
//! Parsing and tokenizing take up to a hundred times the bytes of a body, before the engine has
//! counted the request. The first [`SMALL_BYTES`] of a body are read if the [`MemoryBudget`] has
//! room, and the text of small bodies is tokenized on as many threads as the machine has. The rest
//! of a large one waits for shares of [`LARGE_BYTES`] as it arrives, and the whole for its turn,
//! one at a time and at low priority, to be parsed and tokenized: what large bodies may take does
//! not grow with their number, and the engine's threads come first. Shorter ones do not wait for
//! longer ones, and a sender that stops holds no more than it has sent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use futures_util::StreamExt;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::body_permit::BodyPermit;
use crate::error::ApiError;
use crate::lane::{Lane, Share};
use crate::lifecycle::{Lifecycle, Phase};
use crate::memory_budget::MemoryBudget;

/// Largest request body, bytes. A context of 128 Ki tokens is under 1 MiB as text or as ids.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Longest small body, bytes. Prompts of most requests are shorter.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of large bodies that are held at once, beyond the first [`SMALL_BYTES`] of each, and
/// without the body that has [`BodyLimits::rest`].
const LARGE_BYTES: usize = 3 * MAX_BODY_BYTES;
/// Step in which a large body gets shares, bytes.
const STEP_BYTES: usize = 64 << 10;
/// Time for a step of a large body to arrive: a sender that is slower gives up its share.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait of a large body for room, and for its turn; then the answer is 429.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a body that is refused which are read all the same, for its client to get the answer: a
/// connection closed on unread bytes is reset, which loses what was sent last.
const MAX_DISCARDED: usize = 4 * MAX_BODY_BYTES;
/// Time for the body of a refused request to arrive.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The bounds of one server.
pub(crate) struct BodyLimits {
    /// Memory of small bodies.
    pub budget: Arc<MemoryBudget>,
    /// [`LARGE_BYTES`].
    bytes: Arc<Lane>,
    /// Room for the rest of one large body, whatever its size. Without it, bodies that each hold a
    /// part of all bytes would wait for each other.
    rest: Arc<Lane>,
    /// Threads that tokenize small bodies.
    pub small: Arc<Semaphore>,
    /// The thread that parses and tokenizes large bodies.
    pub large: Arc<Lane>,
    body_timeout: Duration,
    step_timeout: Duration,
}

impl BodyLimits {
    /// Bounds for a machine of `threads` hardware threads; `body_timeout` limits the reading.
    pub(crate) fn new(
        threads: usize,
        body_timeout: Duration,
        budget: Arc<MemoryBudget>,
    ) -> Arc<Self> {
        Arc::new(BodyLimits {
            budget,
            bytes: Lane::new(LARGE_BYTES, WAIT_LIMIT),
            rest: Lane::new(1, WAIT_LIMIT),
            small: Arc::new(Semaphore::new(threads)),
            large: Lane::new(1, WAIT_LIMIT),
            body_timeout,
            step_timeout: STEP_TIMEOUT,
        })
    }

    /// Reads the body of `request`. Refused are a body over [`MAX_BODY_BYTES`], one that takes too
    /// long, one for which there is no room, and any that is incomplete when the server starts to
    /// drain.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        request: Request,
        lifecycle: &Lifecycle,
    ) -> Result<(Vec<u8>, BodyPermit), ApiError> {
        tokio::select! {
            received = self.read(request.into_body()) => received,
            () = lifecycle.reached(Phase::Draining) => Err(ApiError::draining()),
        }
    }

    async fn read(
        self: &Arc<Self>,
        body: axum::body::Body,
    ) -> Result<(Vec<u8>, BodyPermit), ApiError> {
        // Without a Content-Length a body may have any length.
        let declared = body.size_hint().exact().unwrap_or(MAX_BODY_BYTES as u64);
        let mut chunks = body.into_data_stream();
        if declared > MAX_BODY_BYTES as u64 {
            return Err(self.refuse_rest(chunks).await);
        }
        let permit = BodyPermit::new(self.clone());
        let mut received = Received { bytes: Vec::new(), declared: declared as usize, permit };
        let mut clock = SenderClock::new(self.body_timeout, self.step_timeout);
        while let Some(chunk) = clock.next(&mut chunks, received.bytes.len()).await? {
            let length = received.bytes.len() + chunk.len();
            if length > MAX_BODY_BYTES {
                drop(received);
                return Err(self.refuse_rest(chunks).await);
            }
            if let Err(refusal) = received.make_room(length).await {
                drop(received);
                let _ = timeout(DISCARD_TIMEOUT, discard(chunks)).await;
                return Err(refusal);
            }
            received.bytes.extend_from_slice(&chunk);
        }
        let Received { bytes, mut permit, .. } = received;
        permit.size = bytes.len();
        Ok((bytes, permit))
    }

    /// Waits for a share of the bytes of large bodies, or for the room of one whole rest.
    async fn wait_for(&self, rank: usize, bytes: usize) -> Result<LargeShare, ApiError> {
        tokio::select! {
            biased;
            share = self.bytes.acquire(rank, bytes) => share.map(LargeShare::Bytes),
            share = self.rest.acquire(rank, 1) => share.map(LargeShare::Rest),
        }
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
}

/// Room of a large body beyond its first [`SMALL_BYTES`].
pub(crate) enum LargeShare {
    /// For a number of bytes.
    Bytes(Share),
    /// For all that comes.
    Rest(Share),
}

/// A body as far as it has arrived.
struct Received {
    bytes: Vec<u8>,
    declared: usize,
    permit: BodyPermit,
}

impl Received {
    /// Makes room for `length` bytes in all. The buffer grows as they arrive, so that a sender
    /// that declares much holds no more than twice what it has sent.
    async fn make_room(&mut self, length: usize) -> Result<(), ApiError> {
        let held = self.bytes.capacity();
        if length <= held {
            return Ok(());
        }
        let wanted = match length <= SMALL_BYTES {
            true => length.max(2 * held).min(self.declared.clamp(length, SMALL_BYTES)),
            false => length.next_multiple_of(STEP_BYTES).min(self.declared.max(length)),
        };
        let small = wanted.min(SMALL_BYTES).saturating_sub(held);
        if small > 0 {
            let share = self.permit.body_limits.budget.body(small);
            self.permit.hold(share.ok_or_else(ApiError::no_memory)?);
        }
        let large = wanted.saturating_sub(held.max(SMALL_BYTES));
        if large > 0 && !self.permit.has_rest() {
            let share = self.permit.body_limits.wait_for(self.declared, large).await?;
            self.permit.hold_large(share);
        }
        self.bytes.reserve_exact(wanted - self.bytes.len());
        Ok(())
    }
}

/// The time that a sender has. The server's own waits are not counted.
struct SenderClock {
    limit: Duration,
    left: Duration,
    step_limit: Duration,
    /// Of the present step of a large body.
    step_left: Duration,
    /// End of the present step, bytes.
    step_end: usize,
}

impl SenderClock {
    fn new(limit: Duration, step_limit: Duration) -> Self {
        let (left, step_left) = (limit, step_limit);
        SenderClock { limit, left, step_limit, step_left, step_end: SMALL_BYTES }
    }

    /// Waits for the next chunk of a body after `received` bytes.
    async fn next(
        &mut self,
        chunks: &mut BodyDataStream,
        received: usize,
    ) -> Result<Option<Bytes>, ApiError> {
        if received >= self.step_end {
            (self.step_end, self.step_left) = (received + STEP_BYTES, self.step_limit);
        }
        let is_large = received >= SMALL_BYTES;
        let is_step = is_large && self.step_left < self.left;
        let wait = if is_step { self.step_left } else { self.left };
        let start = Instant::now();
        let chunk = timeout(wait, chunks.next()).await;
        let waited = start.elapsed();
        self.left = self.left.saturating_sub(waited);
        self.step_left = self.step_left.saturating_sub(waited);
        match chunk {
            Ok(None) => Ok(None),
            Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
            Ok(Some(Err(error))) => {
                Err(ApiError::invalid(format!("cannot read the body: {error}")))
            }
            Err(_) if is_step => Err(ApiError::timed_out(format!(
                "the body came too slowly: less than {} KiB in {} s",
                STEP_BYTES >> 10,
                self.step_limit.as_secs()
            ))),
            Err(_) => Err(ApiError::timed_out(format!(
                "the body was not complete after {} s",
                self.limit.as_secs()
            ))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use futures_util::{FutureExt, stream};
    use std::convert::Infallible;

    fn limits() -> Arc<BodyLimits> {
        let mut limits = BodyLimits::new(1, Duration::from_secs(60), MemoryBudget::new(100));
        Arc::get_mut(&mut limits).expect("one owner").step_timeout = Duration::from_millis(10);
        limits
    }

    /// A body of `sent` bytes whose sender then stops.
    fn stalled(sent: usize) -> Body {
        let chunks = (0..sent).step_by(8 << 10).map(|_| Ok::<_, Infallible>(vec![b' '; 8 << 10]));
        Body::from_stream(stream::iter(chunks).chain(stream::pending()))
    }

    #[tokio::test]
    async fn a_sender_that_stops_holds_what_it_has_sent_and_not_for_long() {
        let limits = limits();
        let mut reads: Vec<_> =
            (0..40).map(|_| Box::pin(limits.read(stalled(100 << 10)))).collect();
        assert!(reads.iter_mut().all(|read| read.now_or_never().is_none()));
        assert_eq!(limits.bytes.free(), LARGE_BYTES - 40 * STEP_BYTES);
        for read in reads {
            let refused = read.await.err().expect("refused");
            assert_eq!(refused.status(), 408);
            assert!(refused.body().to_string().contains("too slowly"));
        }
        assert_eq!(limits.bytes.free(), LARGE_BYTES);
    }

    #[tokio::test]
    async fn large_bodies_do_not_wait_for_each_other_without_end() {
        let limits = limits();
        let bodies = (0..12).map(|_| vec![b' '; MAX_BODY_BYTES]);
        let reads = bodies.map(|body| {
            limits.read(Body::from_stream(stream::iter(
                body.chunks(16 << 10)
                    .map(|chunk| Ok::<_, Infallible>(chunk.to_vec()))
                    .collect::<Vec<_>>(),
            )))
        });
        let sizes = futures_util::future::join_all(
            reads.map(|read| async { read.await.map(|(bytes, _permit)| bytes.len()) }),
        );
        assert_eq!(sizes.await, vec![Ok(MAX_BODY_BYTES); 12]);
        assert_eq!(limits.bytes.free(), LARGE_BYTES);
    }

    #[tokio::test]
    async fn small_bodies_beyond_the_budget_are_refused() {
        let limits = BodyLimits::new(1, Duration::from_secs(60), MemoryBudget::new(1));
        let mut first = Box::pin(limits.read(stalled(40 << 10)));
        assert!((&mut first).now_or_never().is_none());
        let refused = limits.read(Body::from(vec![b' '; 40 << 10])).await.err().expect("refused");
        assert_eq!(refused.status(), 503);
        drop(first);
        assert!(limits.read(Body::from(vec![b' '; 40 << 10])).await.is_ok());
    }
}
