//! A request's way through the proxy.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use tokio::time::sleep;

use super::Proxy;
use super::answer::{Answer, Served};
use super::asked::Asked;
use super::slot::Slot;
use super::token_count::TokenCount;
use super::upstream::{NoAnswer, end_to_end};
use crate::access::Access;
use crate::connection::PassedOn;
use crate::error::ApiError;
use crate::lifecycle::Phase;
use crate::request_metrics::{RequestSize, Watch};
use crate::state::ServerState;

/// Most memory of bodies that wait, bytes.
const MAX_QUEUED: usize = 512 << 20;

/// Pause before a request is sent again: the first one, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Times that a request is sent which the server may have begun to work on: it may be the one that
/// ends the server.
const MAX_SENT: u32 = 3;

/// A share of [`MAX_QUEUED`].
struct Queued<'a> {
    proxy: &'a Proxy,
    bytes: usize,
}

impl<'a> Queued<'a> {
    fn new(proxy: &'a Proxy, bytes: usize) -> Result<Queued<'a>, ApiError> {
        let queued = Queued { proxy, bytes };
        if proxy.queued_bytes.fetch_add(bytes, Relaxed) + bytes > MAX_QUEUED {
            return Err(ApiError::too_many("the waiting requests take too much memory: try later"));
        }
        Ok(queued)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.proxy.queued_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Proxy {
    /// Passes on a request that needs no slot.
    pub(super) async fn pass(
        &self,
        state: &ServerState,
        request: Request,
    ) -> Result<Response, ApiError> {
        let id = Access::of(&request).map_or_else(String::new, |access| access.id.clone());
        let (head, body) = request.into_parts();
        tokio::select! {
            answer = self.upstream.send(&head, &id, body) => {
                let (head, body) = answer.map_err(ApiError::no_upstream)?.into_parts();
                Ok(passed_on(head.status, &head.headers, Body::new(body)))
            }
            () = state.lifecycle.reached(Phase::Cut) => Err(ApiError::cut()),
        }
    }

    /// Answers a request that generates, when it is its turn.
    pub(super) async fn generate(
        self: Arc<Self>,
        state: Arc<ServerState>,
        request: Request,
    ) -> Result<Response, ApiError> {
        let access = Access::of(&request).cloned().ok_or_else(ApiError::interrupted)?;
        let (head, body) = request.into_parts();
        let whole = Request::from_parts(head.clone(), body);
        let (bytes, permit) = state.body_limits.receive(whole, &state.lifecycle).await?;
        let read = move || Asked::read(Bytes::from(bytes));
        let asked = match permit.is_large() {
            true => permit.run(move |_| read()).await?.0?,
            // Tens of microseconds.
            false => read()?,
        };
        self.in_turn(state, access, &head, asked).await
    }

    /// Answers a request that is read, when it is its turn.
    async fn in_turn(
        self: Arc<Self>,
        state: Arc<ServerState>,
        access: Arc<Access>,
        head: &Parts,
        asked: Asked,
    ) -> Result<Response, ApiError> {
        let queued = Queued::new(&self, asked.body.len())?;
        let mut served = self.clone().submit(access.clone(), &asked)?;
        let (limits, arrival) = (asked.limits, access.arrival);
        let turn = async {
            tokio::select! {
                () = served.slot.admitted() => {}
                error = limits.until_first(arrival) => return Err(error),
            }
            served.watch.start();
            self.answer(head, &access.id, &asked.body, &mut served.slot).await
        };
        let late = async {
            match asked.streams {
                true => limits.until_first(arrival).await,
                // Its first token is not seen: what can be bounded is the wait for a slot.
                false => limits.until_last(arrival).await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = turn => answer,
            error = late => Err(error),
            () = state.lifecycle.reached(Phase::Cut) => Err(ApiError::cut()),
        };
        // Before the record of the request is dropped, which counts its end.
        let answer = answer.inspect_err(|error| access.fail(reason(error)))?;
        drop(queued);
        let (head, body) = answer.into_parts();
        served.is_error = !head.status.is_success();
        let limit = Box::pin(async move {
            tokio::select! {
                error = limits.until_last(arrival) => error,
                () = state.lifecycle.reached(Phase::Cut) => ApiError::cut(),
            }
        });
        let answer = Answer::new(body, count_of(&head.headers), limit, served);
        Ok(passed_on(head.status, &head.headers, Body::new(answer)))
    }

    /// Takes a request into the queue.
    fn submit(self: Arc<Self>, access: Arc<Access>, asked: &Asked) -> Result<Served, ApiError> {
        let Asked { prompt_tokens, max_tokens, limits, .. } = *asked;
        let priority = access.priority(asked.priority)?;
        let predicted = self.lengths.predict(&asked.features, max_tokens);
        let size =
            RequestSize { prompt_tokens, max_tokens: max_tokens.unwrap_or_default(), answers: 1 };
        let watch = Watch::new(self.answers.clone(), access.clone(), size, Instant::now());
        let submitted =
            self.queue.submit(prompt_tokens, predicted.rank_tokens, priority, limits.deadline);
        let slot = submitted.map_err(|refusal| {
            access.fail("rejected");
            ApiError::too_many(refusal.to_string())
        })?;
        let features = asked.features.clone();
        Ok(Served {
            proxy: self,
            access,
            slot,
            watch,
            features,
            predicted,
            limit: max_tokens,
            is_error: false,
        })
    }

    /// The answer to a request, which is sent again as long as there is none, for a while.
    async fn answer(
        &self,
        head: &Parts,
        id: &str,
        body: &Bytes,
        slot: &mut Slot,
    ) -> Result<hyper::Response<Incoming>, ApiError> {
        let (begin, mut pause, mut sent) = (Instant::now(), FIRST_PAUSE, 0);
        loop {
            slot.sent();
            let answer = self.upstream.send(head, id, Body::from(body.clone())).await;
            let is_last = begin.elapsed() + pause > self.retry;
            let is_up = match answer {
                // A server that loads its model says so.
                Ok(answer) if answer.status() == StatusCode::SERVICE_UNAVAILABLE && !is_last => {
                    false
                }
                Ok(answer) => {
                    self.queue.set_up(true);
                    return Ok(answer);
                }
                Err(NoAnswer { was_sent, .. }) if !is_last && sent < MAX_SENT => {
                    sent += u32::from(was_sent);
                    was_sent
                }
                Err(error) => return Err(ApiError::no_upstream(error)),
            };
            self.queue.set_up(is_up);
            self.retries.inc();
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

/// The finish reason of a request that ended with this error.
fn reason(error: &ApiError) -> &'static str {
    match error.status() {
        StatusCode::GATEWAY_TIMEOUT => "deadline",
        StatusCode::BAD_REQUEST | StatusCode::TOO_MANY_REQUESTS => "rejected",
        _ => "error",
    }
}

/// The counter of an answer with these headers.
fn count_of(headers: &HeaderMap) -> TokenCount {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match text(CONTENT_ENCODING) {
        None | Some("identity") => TokenCount::of(text(CONTENT_TYPE).unwrap_or_default()),
        Some(_) => TokenCount::Unknown,
    }
}

/// An answer of the upstream's for the client.
fn passed_on(status: StatusCode, headers: &HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = end_to_end(headers);
    response.extensions_mut().insert(PassedOn);
    response
}
