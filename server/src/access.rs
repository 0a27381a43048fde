//! The record of one HTTP request: arrival, status, tokens, line of the access log.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Instant;

use trail_cli::notice;

/// A request's record. The last holder's drop writes the line of the access log: for a stream, that
/// is after its last token.
pub(crate) struct Access {
    /// When the request's head had arrived.
    pub arrival: Instant,
    /// Method and path, if requests are logged.
    line: Option<String>,
    /// 0 until the response's head is sent.
    status: AtomicU16,
    tokens: AtomicU64,
    failure: OnceLock<&'static str>,
}

impl Access {
    /// The record of a request that arrives now; `line` is its beginning in the log.
    pub(crate) fn begin(line: Option<String>) -> Self {
        Access {
            arrival: Instant::now(),
            line,
            status: AtomicU16::new(0),
            tokens: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Records the status of the response.
    pub(crate) fn responded(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Counts a generated token.
    pub(crate) fn token(&self) {
        self.tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the reason for which the request fails. All its answers that are dropped from now on
    /// end for that reason; the first one counts.
    pub(crate) fn fail(&self, reason: &'static str) {
        self.failure.get_or_init(|| reason);
    }

    /// The reason for which an answer of the request was dropped before its end.
    pub(crate) fn reason_of_drop(&self) -> &'static str {
        self.failure.get().copied().unwrap_or("cancelled")
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let Some(line) = &self.line else { return };
        let status = match *self.status.get_mut() {
            // The client left before the response's head: nginx's number for it.
            0 => 499,
            status => status,
        };
        let (ms, tokens) = (self.arrival.elapsed().as_secs_f64() * 1e3, *self.tokens.get_mut());
        notice(format_args!("{line} {status} {ms:.2} ms {tokens} tokens"));
    }
}
