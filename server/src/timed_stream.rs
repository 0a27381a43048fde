//! A socket whose waits for the client are bounded.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::activity::Activity;
use crate::socket::Socket;
use crate::timeouts::Timeouts;

/// A stream that fails with `TimedOut` when the client sends no request, or half a header, or does
/// not read the response. During a request reads are not timed here: the body has its own limit,
/// and the answer may take as long as it takes.
pub(crate) struct TimedStream<'a> {
    /// Borrowed, as the watch for the client's leaving has it too.
    stream: &'a Socket,
    activity: Arc<Activity>,
    timeouts: Timeouts,
    read: Timer,
    write: Timer,
    /// Number of requests that had begun at the last read.
    requests: u32,
    /// True once a byte after the last request has arrived.
    in_header: bool,
}

impl<'a> TimedStream<'a> {
    /// Wraps `stream`; `activity` says when a request is in progress.
    pub(crate) fn new(stream: &'a Socket, activity: Arc<Activity>, timeouts: Timeouts) -> Self {
        let (read, write) = (Timer::default(), Timer::default());
        TimedStream { stream, activity, timeouts, read, write, requests: 0, in_header: false }
    }

    /// Begins the wait for a request: what has been read so far is no part of one.
    pub(crate) fn begin_idle(&mut self) {
        self.in_header = false;
        self.read.stop();
    }

    /// Bounds the wait of a write that returned `polled`.
    fn time_write<T>(&mut self, cx: &mut Context<'_>, polled: Poll<Result<T>>) -> Poll<Result<T>> {
        self.activity.set_write_blocked(polled.is_pending());
        match polled {
            Poll::Ready(result) => {
                self.write.stop();
                Poll::Ready(result)
            }
            Poll::Pending => self.write.poll(cx, self.timeouts.write).map(Err),
        }
    }
}

/// Repeats `io` until it does not find the socket unready, which `ready` waits for.
fn poll_io<T>(
    mut ready: impl FnMut() -> Poll<Result<()>>,
    mut io: impl FnMut() -> Result<T>,
) -> Poll<Result<T>> {
    loop {
        ready!(ready())?;
        match io() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => return Poll::Ready(done),
        }
    }
}

impl AsyncRead for TimedStream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        let stream = this.stream;
        let polled = poll_io(
            || stream.poll_read_ready(cx),
            || stream.try_read(buffer.initialize_unfilled()).map(|bytes| buffer.advance(bytes)),
        );
        let requests = this.activity.requests();
        if this.requests != requests {
            this.requests = requests;
            this.in_header = false;
            this.read.stop();
        }
        if this.activity.is_in_request() {
            this.activity.wake_at_end(cx);
            return polled;
        }
        if polled.is_ready() && !this.in_header {
            this.in_header = true;
            this.read.stop();
        }
        match polled {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending if this.in_header => this.read.poll(cx, this.timeouts.header).map(Err),
            Poll::Pending => this.read.poll(cx, this.timeouts.idle).map(Err),
        }
    }
}

impl AsyncWrite for TimedStream<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let stream = self.stream;
        let polled = poll_io(|| stream.poll_write_ready(cx), || stream.try_write(bytes));
        self.time_write(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let stream = self.stream;
        let polled = poll_io(|| stream.poll_write_ready(cx), || stream.try_write_vectored(bytes));
        self.time_write(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        // A socket has nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        // The connection drops the socket next, which shuts it down.
        Poll::Ready(Ok(()))
    }
}

/// A timer that starts with the first poll after a stop. The allocation is made once.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    runs: bool,
}

impl Timer {
    /// Starts the timer if it is stopped; ready, with the error to report, after `limit`.
    fn poll(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<Error> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.runs {
            sleep.as_mut().reset(Instant::now() + limit);
            self.runs = true;
        }
        sleep.as_mut().poll(cx).map(|()| ErrorKind::TimedOut.into())
    }

    fn stop(&mut self) {
        self.runs = false;
    }
}
