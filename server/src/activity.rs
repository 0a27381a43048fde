//! The activity of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Context;

use futures_util::task::AtomicWaker;

/// State of a connection, shared by its stream and its requests. All of it is used by one task.
#[derive(Default)]
pub(crate) struct Activity {
    in_request: AtomicBool,
    requests: AtomicU32,
    write_blocked: AtomicBool,
    /// The connection's task, if it waits for the client's bytes during a request.
    reader: AtomicWaker,
}

impl Activity {
    /// Returns true from the end of a request's header to the end of its response.
    pub(crate) fn is_in_request(&self) -> bool {
        self.in_request.load(Ordering::Relaxed)
    }

    /// Number of requests so far, modulo 2^32.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Registers the reader to be woken at the end of the request. hyper does not read again until
    /// bytes arrive, so that the wait for the next request would not be timed.
    pub(crate) fn wake_at_end(&self, cx: &Context<'_>) {
        self.reader.register(cx.waker());
    }

    /// Records that the last write found the socket's buffer full, or not.
    pub(crate) fn set_write_blocked(&self, blocked: bool) {
        self.write_blocked.store(blocked, Ordering::Relaxed);
    }

    /// Returns true if there is no request, or half its header, and nothing left to write.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_in_request() && !self.write_blocked.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(self: &Arc<Self>) -> OpenRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_request.store(true, Ordering::Relaxed);
        OpenRequest(self.clone())
    }
}

/// A request in progress; ends when dropped.
pub(crate) struct OpenRequest(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.in_request.store(false, Ordering::Relaxed);
        self.0.reader.wake();
    }
}
