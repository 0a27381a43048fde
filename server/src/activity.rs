//! The activity of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// Where a connection is in its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is no request, or half its header.
    Idle,
    /// The header has arrived, and there is no response yet.
    Waiting {
        /// True if the client's version of HTTP has interim responses (1xx).
        takes_interim: bool,
    },
    /// The response is being sent.
    Answering,
}

impl Stage {
    const ALL: [Stage; 4] = [
        Stage::Idle,
        Stage::Waiting { takes_interim: false },
        Stage::Waiting { takes_interim: true },
        Stage::Answering,
    ];
}

/// State of a connection, shared by its stream, its watch and its requests. All of it is used by
/// one task.
#[derive(Default)]
pub(crate) struct Activity {
    /// Index of [`Stage::ALL`].
    stage: AtomicU8,
    requests: AtomicU32,
    write_blocked: AtomicBool,
    comment: AtomicBool,
    begun: Notify,
    /// The connection's task, if it waits for the client's bytes during a request.
    reader: AtomicWaker,
}

impl Activity {
    /// The present stage.
    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Relaxed))]
    }

    fn enter(&self, stage: Stage) {
        let index = Stage::ALL.iter().position(|other| *other == stage);
        self.stage.store(index.unwrap_or_default() as u8, Relaxed);
    }

    /// Returns true from the end of a request's header to the end of its response.
    pub(crate) fn is_in_request(&self) -> bool {
        self.stage() != Stage::Idle
    }

    /// Number of requests so far, modulo 2^32.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Relaxed)
    }

    /// Completes when a request has begun since the last call.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Registers the reader to be woken at the end of the request. hyper does not read again until
    /// bytes arrive, so that the wait for the next request would not be timed.
    pub(crate) fn wake_at_end(&self, cx: &Context<'_>) {
        self.reader.register(cx.waker());
    }

    /// Records that the last write found the socket's buffer full, or not.
    pub(crate) fn set_write_blocked(&self, blocked: bool) {
        self.write_blocked.store(blocked, Relaxed);
    }

    /// Returns true if the last write found the socket's buffer full.
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.write_blocked.load(Relaxed)
    }

    /// Returns true if there is no request, or half its header, and nothing left to write.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_in_request() && !self.is_write_blocked()
    }

    /// Asks for a comment in the stream of events that is being sent, if it is one.
    pub(crate) fn request_comment(&self) {
        self.comment.store(true, Relaxed);
    }

    /// Returns true if a comment was requested since the last call.
    pub(crate) fn take_comment(&self) -> bool {
        self.comment.swap(false, Relaxed)
    }

    /// Begins a request.
    pub(crate) fn begin(self: &Arc<Self>, takes_interim: bool) -> OpenRequest {
        self.requests.fetch_add(1, Relaxed);
        self.comment.store(false, Relaxed);
        self.enter(Stage::Waiting { takes_interim });
        self.begun.notify_one();
        OpenRequest(self.clone())
    }
}

/// A request in progress; ends when dropped.
pub(crate) struct OpenRequest(Arc<Activity>);

impl OpenRequest {
    /// Records that the response begins.
    pub(crate) fn answer(&self) {
        self.0.enter(Stage::Answering);
    }

    /// The connection's activity.
    pub(crate) fn activity(&self) -> &Activity {
        &self.0
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.enter(Stage::Idle);
        self.0.reader.wake();
    }
}
