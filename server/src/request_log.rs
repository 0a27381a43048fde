//! One HTTP request from its head to the end of its answer: arrival, status, access log.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use trail_cli::notice;

use crate::state::Shared;

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

/// Records each request, and counts responses by status.
pub(crate) async fn record(State(state): Shared, mut request: Request, next: Next) -> Response {
    let line = || format!("{} {}", request.method(), request.uri().path());
    let access = Arc::new(Access::begin(state.verbose.then(line)));
    request.extensions_mut().insert(access.clone());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    access.status.store(status, Ordering::Relaxed);
    state.metrics.responded(status);
    response
}
