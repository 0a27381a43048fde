//! Bounds on the bodies that are held, parsed and tokenized at once. Dynamo tokenizes a text in up
//! to 160 times its bytes of memory, and on the threads that small requests need. Small bodies are
//! read at once. Others wait for a share of the bytes once they prove to be longer, and long ones
//! for a turn too: what a client declares, or does not send, costs the small ones nothing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::http::StatusCode;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bodies of the greatest length that are held at once.
const HELD: usize = 64;

/// Unit of the permits, bytes.
const UNIT: usize = 1 << 10;

/// Longest body that needs no share of the bytes held, bytes. Prompts of most requests are shorter.
const SMALL: usize = 64 << 10;

/// Longest body that waits for no turn, bytes: more than 100,000 tokens of text.
const MEDIUM: usize = 512 << 10;

/// Bodies, each with its first [`SMALL`] bytes read, that wait for a share of the bytes held.
const WAITING: usize = 256;

/// Long bodies that wait for their turn: they leave half of the bytes held to others.
const WAITING_LONG: usize = HELD / 2;

/// Time for the first [`SMALL`] bytes of a body to arrive, and for the rest.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest wait for a share of the bytes held, and for a turn.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest turn of a long body: an answer may begin late for other reasons than its tokens.
const TURN: Duration = Duration::from_secs(10);

/// A refusal: its status, and a line that says why.
pub type Refusal = (StatusCode, String);

/// The bounds of one router.
pub struct Intake {
    /// Longest body, bytes.
    longest: usize,
    /// Bytes of all bodies that are not small, in units.
    held: Queue,
    /// The one long body that Dynamo is at.
    long: Queue,
    /// Threads that parse and tokenize.
    threads: Arc<Semaphore>,
}

/// A body's share of the bounds, for as long as it lives.
#[derive(Debug, Default)]
pub struct Share {
    /// Of a body that is not small.
    held: Option<OwnedSemaphorePermit>,
    /// Of a long body.
    turn: Option<OwnedSemaphorePermit>,
}

impl Intake {
    /// Bounds for bodies of at most `longest` bytes.
    pub fn new(longest: usize) -> Intake {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Intake {
            longest,
            held: Queue::new(HELD * longest.div_ceil(UNIT), WAITING),
            long: Queue::new(1, WAITING_LONG),
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// Reads a body. A long one waits for its turn.
    ///
    /// # Errors
    ///
    /// 400 for a body that breaks off, 408 for one that is late, 413 for one that is too long, 503
    /// where too many wait, or one waited for too long.
    pub async fn receive(&self, body: Body) -> Result<(Bytes, Share), Refusal> {
        let too_long = || {
            let why = format!("the body is longer than {} bytes: see --max-body", self.longest);
            (StatusCode::PAYLOAD_TOO_LARGE, why)
        };
        // Without a Content-Length a body may have any length.
        let declared = body.size_hint().exact().unwrap_or(self.longest as u64);
        if declared > self.longest as u64 {
            return Err(too_long());
        }
        let (mut chunks, mut bytes) = (body.into_data_stream(), Vec::new());
        let mut share = Share::default();
        if !fill(&mut chunks, &mut bytes, self.longest.min(SMALL)).await? {
            let mut held = self.held.wait_for(units(declared as usize)).await?;
            bytes.reserve_exact((declared as usize).saturating_sub(bytes.len()));
            if !fill(&mut chunks, &mut bytes, self.longest).await? {
                return Err(too_long());
            }
            let unused = held.num_permits().saturating_sub(units(bytes.len()) as usize);
            drop(held.split(unused));
            share.held = Some(held);
        }
        if bytes.len() > MEDIUM {
            share.turn = Some(self.long.wait_for(1).await?);
        }
        Ok((bytes.into(), share))
    }

    /// Runs `work`, which takes processor time, on one of a few threads. Work that has begun keeps
    /// the share of its body to its end, also when the client has left.
    pub async fn run<T: Send + 'static>(
        &self,
        share: Share,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Share), Refusal> {
        let internal = |error: String| (StatusCode::INTERNAL_SERVER_ERROR, error);
        let thread = self.threads.clone().acquire_owned().await;
        let thread = thread.map_err(|error| internal(error.to_string()))?;
        let done = tokio::task::spawn_blocking(move || {
            let _thread = thread;
            (work(), share)
        });
        done.await.map_err(|error| internal(error.to_string()))
    }
}

/// Permits that are waited for, by a bounded number and for a bounded time.
struct Queue {
    permits: Arc<Semaphore>,
    places: Semaphore,
}

impl Queue {
    fn new(permits: usize, places: usize) -> Queue {
        Queue { permits: Arc::new(Semaphore::new(permits)), places: Semaphore::new(places) }
    }

    async fn wait_for(&self, permits: u32) -> Result<OwnedSemaphorePermit, Refusal> {
        let full =
            || (StatusCode::SERVICE_UNAVAILABLE, "too many long requests wait: try again".into());
        let _place = self.places.try_acquire().map_err(|_| full())?;
        let permit = timeout(WAIT_TIMEOUT, self.permits.clone().acquire_many_owned(permits)).await;
        permit.ok().and_then(Result::ok).ok_or_else(full)
    }
}

/// Appends chunks until the body ends, which returns true, or `bytes` has more than `most`.
async fn fill(
    chunks: &mut BodyDataStream,
    bytes: &mut Vec<u8>,
    max: usize,
) -> Result<bool, Refusal> {
    let read = async {
        while bytes.len() <= max {
            match chunks.next().await {
                None => return Ok(true),
                Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
                Some(Err(error)) => {
                    return Err((
                        StatusCode::BAD_REQUEST,
                        format!("the body cannot be read: {error}"),
                    ));
                }
            }
        }
        Ok(false)
    };
    timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| {
        let seconds = READ_TIMEOUT.as_secs();
        let late = format!("the body was not complete after {seconds} s");
        Err((StatusCode::REQUEST_TIMEOUT, late))
    })
}

impl Share {
    /// Awaits the `answer` to a body, which gives its turn back then, or after [`TURN`].
    pub async fn during<T>(mut self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        if self.turn.is_some()
            && let Ok(answer) = timeout(TURN, &mut answer).await
        {
            return answer;
        }
        self.turn = None;
        answer.await
    }
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::sync::mpsc;

    use futures::{FutureExt, stream};
    use tokio::sync::oneshot;
    use tokio::task::unconstrained;

    use super::*;

    type Received = Result<(Bytes, Share), Refusal>;

    /// Deadline of a test.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn body(bytes: usize) -> Body {
        Body::from(vec![b' '; bytes])
    }

    /// A body without a length, of `first` bytes and no end.
    fn stalled(first: usize) -> Body {
        let first = stream::iter([Ok::<_, Error>(Bytes::from(vec![b' '; first]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    /// The outcome of a future that does not wait. Not subject to Tokio's budget of a task, after
    /// which every future waits.
    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        unconstrained(future).now_or_never()
    }

    fn status(received: Received) -> Result<usize, StatusCode> {
        received.map(|(bytes, _)| bytes.len()).map_err(|why| why.0)
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused() {
        for longest in [2 * UNIT, 2 * SMALL] {
            let intake = Intake::new(longest);
            assert_eq!(status(intake.receive(body(longest)).await), Ok(longest));
            let declared = intake.receive(body(longest + 1)).await;
            assert_eq!(status(declared), Err(StatusCode::PAYLOAD_TOO_LARGE));
            let chunks = stream::repeat_with(|| Ok::<_, Error>(Bytes::from_static(b"[1,1")));
            let endless = intake.receive(Body::from_stream(chunks)).await;
            assert_eq!(status(endless), Err(StatusCode::PAYLOAD_TOO_LARGE));
            assert_eq!(intake.held.permits.available_permits(), HELD * longest / UNIT);
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_refused_as_such() {
        let intake = Intake::new(4 * SMALL);
        for first in [1, 2 * SMALL] {
            let chunks =
                [Ok(Bytes::from(vec![b' '; first])), Err(Error::from(ErrorKind::ConnectionReset))];
            let broken = intake.receive(Body::from_stream(stream::iter(chunks))).await;
            assert_eq!(status(broken), Err(StatusCode::BAD_REQUEST));
        }
    }

    #[tokio::test]
    async fn bodies_beyond_the_bound_wait_for_others() {
        let intake = Intake::new(4 * SMALL);
        let mut held = Vec::new();
        for _ in 0..HELD {
            held.push(intake.receive(body(4 * SMALL)).await.expect("fits").1);
        }
        assert!(at_once(intake.receive(body(SMALL + 1))).is_none(), "it waits");
        at_once(intake.receive(body(SMALL))).expect("no wait").expect("fits");
        held.pop();
        // A body of unknown length takes all of what the other had, and gives the rest back.
        let chunk = stream::iter([Ok::<_, Error>(Bytes::from(vec![b' '; SMALL + 1]))]);
        let _short = intake.receive(Body::from_stream(chunk)).await.expect("there is room");
        let _other = intake.receive(body(2 * SMALL)).await.expect("there is room");
    }

    #[tokio::test]
    async fn bodies_that_do_not_arrive_stop_no_small_one() {
        for first in [0, 1, SMALL, SMALL + 1] {
            let intake = Intake::new(4 * SMALL);
            let mut waiting: Vec<_> =
                (0..2 * HELD).map(|_| Box::pin(intake.receive(stalled(first)))).collect();
            assert!(waiting.iter_mut().all(|waits| at_once(waits).is_none()));
            let small = at_once(intake.receive(body(100)));
            assert_eq!(status(small.expect("it does not wait")), Ok(100), "{first}");
            let free = intake.held.permits.available_permits() > 0;
            assert_eq!(free, first <= SMALL, "{first}");
        }
    }

    #[tokio::test]
    async fn a_body_beyond_the_queue_is_refused() {
        let intake = Intake::new(4 * SMALL);
        let mut waiting: Vec<_> =
            (0..HELD + WAITING).map(|_| Box::pin(intake.receive(stalled(SMALL + 1)))).collect();
        assert!(waiting.iter_mut().all(|waits| at_once(waits).is_none()));
        let refused = at_once(intake.receive(body(2 * SMALL))).expect("no wait");
        assert_eq!(status(refused), Err(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[tokio::test]
    async fn long_bodies_take_turns_and_short_ones_pass() {
        let intake = Intake::new(2 * MEDIUM);
        let (_, first) = intake.receive(body(MEDIUM + 1)).await.expect("fits");
        assert!(at_once(intake.receive(body(MEDIUM + 1))).is_none(), "it waits");
        at_once(intake.receive(body(MEDIUM))).expect("waits for no turn").expect("fits");
        first.during(async {}).await;
        at_once(intake.receive(body(MEDIUM + 1))).expect("its turn").expect("fits");
    }

    #[tokio::test]
    async fn long_bodies_beyond_the_queue_are_refused_and_short_ones_pass() {
        let intake = Intake::new(2 * MEDIUM);
        let (_, _first) = intake.receive(body(2 * MEDIUM)).await.expect("fits");
        let all: Vec<_> = (0..2 * HELD)
            .map(|_| Box::pin(intake.receive(body(2 * MEDIUM))))
            .map(|mut waits| (at_once(&mut waits).map(status), waits))
            .collect();
        let count = |wanted| all.iter().filter(|(found, _)| *found == wanted).count();
        assert_eq!(count(None), WAITING_LONG);
        assert_eq!(count(Some(Err(StatusCode::SERVICE_UNAVAILABLE))), 2 * HELD - WAITING_LONG);
        for short in [100, SMALL + 1, MEDIUM] {
            let passes = at_once(intake.receive(body(short)));
            assert_eq!(status(passes.expect("it does not wait")), Ok(short));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_and_reads_have_an_end() {
        let intake = Intake::new(2 * MEDIUM);
        let late = intake.receive(stalled(1)).await;
        assert_eq!(status(late), Err(StatusCode::REQUEST_TIMEOUT));
        let (_, _first) = intake.receive(body(2 * MEDIUM)).await.expect("fits");
        let second = intake.receive(body(2 * MEDIUM)).await;
        assert_eq!(status(second), Err(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[tokio::test]
    async fn work_that_has_begun_keeps_its_share_when_the_client_leaves() {
        let intake = Intake::new(2 * MEDIUM);
        let (_, share) = intake.receive(body(2 * MEDIUM)).await.expect("fits");
        let (begun, begins) = oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let mut first = Box::pin(intake.run(share, move || {
            let _ = begun.send(());
            let _ = released.recv();
        }));
        assert!(at_once(&mut first).is_none());
        timeout(DEADLINE, begins).await.expect("in time").expect("it begins");
        drop(first);
        let mut second = Box::pin(intake.receive(body(2 * MEDIUM)));
        assert!(at_once(&mut second).is_none(), "the first has not ended");
        let held = 2 * (2 * MEDIUM / UNIT);
        assert_eq!(intake.held.permits.available_permits(), HELD * (2 * MEDIUM / UNIT) - held);
        release.send(()).expect("the work goes on");
        let (_, share) = timeout(DEADLINE, second).await.expect("in time").expect("its turn");
        let (done, _) = intake.run(share, || 7).await.expect("it runs");
        assert_eq!(done, 7);
    }
}
