//! The record of one HTTP request: arrival, status, tokens, line of the access log.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::Request;
use serde_json::json;
use tokio::sync::watch;
use trail_cli::log_record;

use crate::api_keys::ApiKey;
use crate::error::ApiError;
use crate::number::Priority;

/// A request's record. The last holder's drop writes the line of the access log: for a stream, that
/// is after its last token.
pub(crate) struct Access {
    /// When the request's head had arrived.
    pub arrival: Instant,
    /// Id of the request, the client's or a random one.
    pub id: String,
    /// The key that the request presented.
    key: OnceLock<Arc<ApiKey>>,
    /// Method and path, if requests are logged.
    line: Option<(String, String)>,
    /// 0 until the response's head is sent.
    status: AtomicU16,
    tokens: AtomicU64,
    failure: OnceLock<&'static str>,
    /// True once somebody has cancelled the request.
    cancelled: watch::Sender<bool>,
}

impl Access {
    /// The record of a request that arrives now; `line` its method and path in the log.
    pub(crate) fn begin(id: String, line: Option<(String, String)>) -> Self {
        Access {
            arrival: Instant::now(),
            id,
            key: OnceLock::new(),
            line,
            status: AtomicU16::new(0),
            tokens: AtomicU64::new(0),
            failure: OnceLock::new(),
            cancelled: watch::Sender::new(false),
        }
    }

    /// The record of `request`.
    pub(crate) fn of(request: &Request) -> Option<&Arc<Access>> {
        request.extensions().get()
    }

    /// Records the key of the request.
    pub(crate) fn set_key(&self, key: Arc<ApiKey>) {
        // One check of a request sets it.
        let _ = self.key.set(key);
    }

    /// The key of the request; `None` for a server without keys.
    pub(crate) fn key(&self) -> Option<&ApiKey> {
        self.key.get().map(|key| &**key)
    }

    /// Returns an error for the key of a user, who does not change `what` the server has.
    pub(crate) fn check_admin(&self, what: &str) -> Result<(), ApiError> {
        match self.key() {
            Some(key) if !key.is_admin => Err(ApiError::forbidden(format!(
                "this API key does not change {what}: use that of --api-key"
            ))),
            _ => Ok(()),
        }
    }

    /// The priority of a request that asks for `asked`, where its key may have that.
    pub(crate) fn priority(&self, asked: Option<Priority>) -> Result<i32, ApiError> {
        let least = self.key().and_then(|key| key.least_priority);
        // A client that asks for none has the nearest to 0 that it may have.
        let Some(asked) = asked else { return Ok(least.unwrap_or(0).max(0)) };
        // In range by construction.
        let priority = i64::from(asked) as i32;
        match least.filter(|least| priority < *least) {
            Some(least) => {
                let message =
                    format!("requests of this API key have a 'priority' of {least} or more");
                Err(ApiError::invalid_field("priority", message))
            }
            None => Ok(priority),
        }
    }

    /// Records the status of the response.
    pub(crate) fn responded(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Counts a generated token.
    pub(crate) fn token(&self) {
        self.add_tokens(1);
    }

    /// Counts generated tokens.
    pub(crate) fn add_tokens(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        self.use_tokens(tokens);
    }

    /// Records the tokens of the whole answer, in place of those counted so far. Those counted too
    /// many against the limits of the key stay.
    pub(crate) fn set_tokens(&self, tokens: u64) {
        let before = self.tokens.swap(tokens, Ordering::Relaxed);
        self.use_tokens(tokens.saturating_sub(before));
    }

    /// Counts tokens of a prompt, or of the answer, against the limits of the request's key.
    pub(crate) fn use_tokens(&self, tokens: u64) {
        if let Some(key) = self.key() {
            key.rate.use_tokens(tokens);
        }
    }

    /// Cancels the request: its answers end with an error.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Waits until the request is cancelled.
    pub(crate) async fn cancelled(&self) {
        // Fails without a sender alone, which `self` has.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
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
        let Some((method, path)) = &self.line else { return };
        let status = match *self.status.get_mut() {
            // The client left before the response's head: nginx's number for it.
            0 => 499,
            status => status,
        };
        let (ms, tokens) = (self.arrival.elapsed().as_secs_f64() * 1e3, *self.tokens.get_mut());
        let (id, key) = (&self.id, self.key.get().map(|key| &*key.name));
        let of = key.map(|key| format!(" of {key}")).unwrap_or_default();
        let text = format!("{method} {path} {status} {ms:.2} ms {tokens} tokens, {id}{of}");
        let fields = json!({
            "request_id": id,
            "method": method,
            "path": path,
            "status": status,
            "duration_ms": (100.0 * ms).round() / 100.0,
            "tokens": tokens,
            "key": key,
        });
        log_record(text, "request", &fields);
    }
}
