//! A request's way through the proxy.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use tokio::time::sleep;
use trail_cli::notice;

use super::answer::{Answer, Limit, Limits, Served};
use super::asked::Asked;
use super::slot::Slot;
use super::token_count::TokenCount;
use super::upstream::{NoAnswer, end_to_end};
use super::{Proxy, WAITING, path};
use crate::access::Access;
use crate::body_limits::BodyLimits;
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
/// Times that a request is sent, at most, with which the server may have begun before it ended: it
/// may be what ends the server.
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
    /// Passes on a request that needs no slot. One that needs a slot, by another spelling of its
    /// path, waits for it.
    pub(super) async fn pass(
        self: Arc<Self>,
        state: Arc<ServerState>,
        request: Request,
    ) -> Result<Response, ApiError> {
        let Some(path) = path::plain(request.uri().path()) else {
            BodyLimits::discard(request).await;
            return Err(ApiError::invalid("the path goes up by '..': give it without"));
        };
        if request.method() == Method::POST && WAITING.contains(&&*path) {
            return self.generate(state, request).await;
        }
        let id = Access::of(&request).map_or_else(String::new, |access| access.id.clone());
        let (head, body) = request.into_parts();
        tokio::select! {
            answer = self.send(&head, &id, body) => {
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
        let (mut head, body) = request.into_parts();
        // The tokens of a compressed answer are not seen.
        head.headers.remove(ACCEPT_ENCODING);
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
        served.is_error = head.status.is_client_error() || head.status.is_server_error();
        let limit = Box::pin(async move {
            tokio::select! {
                error = limits.until_last(arrival) => error,
                () = state.lifecycle.reached(Phase::Cut) => ApiError::cut(),
            }
        });
        let count = count_of(&head.headers);
        let first = matches!(count, TokenCount::Events(_))
            .then(|| -> Limit { Box::pin(async move { limits.until_first(arrival).await }) });
        let answer = Answer::new(body, count, Limits { first, last: limit }, served);
        Ok(passed_on(head.status, &head.headers, Body::new(answer)))
    }

    /// Takes a request into the queue.
    fn submit(self: Arc<Self>, access: Arc<Access>, asked: &Asked) -> Result<Served, ApiError> {
        let Asked { prompt_tokens, max_tokens, limits, .. } = *asked;
        let priority = access.priority(asked.priority)?;
        access.use_tokens(prompt_tokens as u64);
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
            let answer = self.send(head, id, Body::from(body.clone())).await;
            let is_last = begin.elapsed() + pause > self.retry;
            match answer {
                // A server that loads its model says so.
                Ok(answer) if answer.status() == StatusCode::SERVICE_UNAVAILABLE && !is_last => {}
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    sent += u32::from(error.was_sent);
                    // A server that is there has ended the connection because of the request.
                    if is_last || !error.is_down || sent == MAX_SENT {
                        return Err(ApiError::no_upstream(error));
                    }
                }
            }
            self.retries.inc();
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Sends a request once, and notes whether the server is up.
    async fn send(
        &self,
        head: &Parts,
        id: &str,
        body: Body,
    ) -> Result<hyper::Response<Incoming>, NoAnswer> {
        let answer = self.upstream.send(head, id, body).await;
        match &answer {
            // It may be busy, or not be up yet.
            Ok(answer) if answer.status() == StatusCode::SERVICE_UNAVAILABLE => {}
            Ok(_) => {
                if self.queue.set_up(true) {
                    notice(format_args!("the server at {} answers again", self.upstream.shown()));
                }
            }
            // Once, however many requests find it so.
            Err(error) if error.is_down => {
                if self.queue.set_up(false) {
                    notice(format_args!("warning: {}; requests wait for it", error.why));
                }
            }
            Err(error) => notice(format_args!("warning: {}", error.why)),
        }
        answer
    }
}

/// The finish reason of a request that ended with this error.
pub(super) fn reason(error: &ApiError) -> &'static str {
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
