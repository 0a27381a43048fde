//! Bounds on the bodies that are held, parsed and tokenized at once. Dynamo tokenizes a text in up
//! to 160 times its bytes of memory, and on the threads that small requests need.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bodies of the greatest length that are held at once.
const HELD: usize = 64;

/// Unit of the permits, bytes.
const UNIT: usize = 1 << 10;

/// Longest body that waits for no turn, bytes: more than 100,000 tokens of text.
const SMALL: usize = 512 << 10;

/// Time for a body to arrive, with the wait for others to go, and for its turn to come.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest turn of a long body: an answer may begin late for other reasons than its tokens.
const TURN: Duration = Duration::from_secs(10);

/// A refusal: its status, and a line that says why.
pub type Refusal = (StatusCode, String);

/// The bounds of one router.
pub struct Intake {
    /// Longest body, bytes.
    longest: usize,
    /// Bytes of all bodies, in units.
    held: Arc<Semaphore>,
    /// Threads that parse and tokenize.
    threads: Arc<Semaphore>,
    /// The one long body that Dynamo is at.
    long: Arc<Semaphore>,
}

/// A body's share of the bounds, for as long as it lives.
#[derive(Debug)]
pub struct Share {
    _held: OwnedSemaphorePermit,
    /// Of a long body.
    turn: Option<OwnedSemaphorePermit>,
}

impl Intake {
    /// Bounds for bodies of at most `longest` bytes.
    pub fn new(longest: usize) -> Intake {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Intake {
            longest,
            held: Arc::new(Semaphore::new(HELD * longest.div_ceil(UNIT))),
            threads: Arc::new(Semaphore::new(threads)),
            long: Arc::new(Semaphore::new(1)),
        }
    }

    /// Reads a body. A long one waits for its turn.
    pub async fn receive(&self, body: Body) -> Result<(Bytes, Share), Refusal> {
        let seconds = READ_TIMEOUT.as_secs();
        let late = || format!("the body was not complete after {seconds} s");
        let read = timeout(READ_TIMEOUT, self.read(body)).await;
        let (bytes, held) = read.unwrap_or_else(|_| Err((StatusCode::REQUEST_TIMEOUT, late())))?;
        let turn = match bytes.len() > SMALL {
            true => Some(timeout(READ_TIMEOUT, acquire(&self.long, 1)).await.map_err(|_| {
                (StatusCode::SERVICE_UNAVAILABLE, "too many long requests wait: try again".into())
            })??),
            false => None,
        };
        Ok((bytes, Share { _held: held, turn }))
    }

    async fn read(&self, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), Refusal> {
        let too_long = || {
            let why = format!("the body is longer than {} bytes: see --max-body", self.longest);
            (StatusCode::PAYLOAD_TOO_LARGE, why)
        };
        // Without a Content-Length a body may have any length.
        let declared = body.size_hint().exact().unwrap_or(self.longest as u64);
        if declared > self.longest as u64 {
            return Err(too_long());
        }
        let mut permit = acquire(&self.held, units(declared as usize)).await?;
        let bytes = to_bytes(body, self.longest).await.map_err(|_| too_long())?;
        let unused = permit.num_permits().saturating_sub(units(bytes.len()) as usize);
        drop(permit.split(unused));
        Ok((bytes, permit))
    }

    /// Runs `work`, which takes processor time, on one of a few threads.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = acquire(&self.threads, 1).await?;
        let done = tokio::task::spawn_blocking(move || {
            // To the end of the work, also when the client has left.
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }
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

async fn acquire(of: &Arc<Semaphore>, permits: u32) -> Result<OwnedSemaphorePermit, Refusal> {
    let acquired = of.clone().acquire_many_owned(permits).await;
    acquired.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};

    use super::*;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b' '; bytes])
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused() {
        let intake = Intake::new(2 * UNIT);
        let (bytes, _permit) = intake.receive(body(2 * UNIT)).await.expect("fits");
        assert_eq!(bytes.len(), 2 * UNIT);
        let refused =
            |found: Result<(Bytes, Share), Refusal>| found.map(|_| ()).map_err(|why| why.0);
        let declared = intake.receive(body(2 * UNIT + 1)).await;
        assert_eq!(refused(declared), Err(StatusCode::PAYLOAD_TOO_LARGE));
        let chunks = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(b"[1,1")));
        let endless = intake.receive(Body::from_stream(chunks)).await;
        assert_eq!(refused(endless), Err(StatusCode::PAYLOAD_TOO_LARGE));
    }

    #[tokio::test]
    async fn bodies_beyond_the_bound_wait_for_others() {
        let intake = Intake::new(2 * UNIT);
        let mut held = Vec::new();
        for _ in 0..HELD {
            held.push(intake.receive(body(2 * UNIT)).await.expect("fits").1);
        }
        assert!(intake.receive(body(1)).now_or_never().is_none(), "it waits");
        held.pop();
        // Room for two units: a body of unknown length takes both, and gives one back.
        let chunk = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{}"))]);
        let _short = intake.receive(Body::from_stream(chunk)).await.expect("there is room");
        let _other = intake.receive(body(UNIT)).await.expect("there is room");
    }

    #[tokio::test]
    async fn long_bodies_take_turns_and_short_ones_pass() {
        let intake = Intake::new(2 * SMALL);
        let (_, first) = intake.receive(body(SMALL + 1)).await.expect("fits");
        assert!(intake.receive(body(SMALL + 1)).now_or_never().is_none(), "it waits");
        intake.receive(body(SMALL)).now_or_never().expect("waits for no turn").expect("fits");
        first.during(async {}).await;
        intake.receive(body(SMALL + 1)).now_or_never().expect("its turn").expect("fits");
    }
}
