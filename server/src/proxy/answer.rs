//! An answer that passes through, byte for byte, and is counted on its way.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};

use super::Proxy;
use super::features::Features;
use super::generate::reason;
use super::lengths::Predicted;
use super::slot::Slot;
use super::token_count::TokenCount;
use crate::access::Access;
use crate::error::ApiError;
use crate::request_metrics::Watch;

/// The end that a time limit or the end of the server sets to an answer.
pub(super) type Limit = Pin<Box<dyn Future<Output = ApiError> + Send>>;

/// The limits of an answer.
pub(super) struct Limits {
    /// Of its first event; `None` where events are not seen.
    pub first: Option<Limit>,
    /// Of its end.
    pub last: Limit,
}

impl Limits {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        match self.first.as_mut().map(|first| first.as_mut().poll(cx)) {
            Some(Poll::Ready(error)) => Poll::Ready(error),
            _ => self.last.as_mut().poll(cx),
        }
    }
}

/// The request of an answer, from its admission to its end.
pub(super) struct Served {
    pub proxy: Arc<Proxy>,
    pub access: Arc<Access>,
    pub slot: Slot,
    pub watch: Watch,
    pub features: Features,
    pub predicted: Predicted,
    /// Most tokens of the answer, if the request says so.
    pub limit: Option<u32>,
    /// True if the answer is an error: its length says nothing.
    pub is_error: bool,
}

impl Served {
    /// Records the whole answer, of `tokens` if they are known.
    fn end(mut self, tokens: Option<u32>) {
        if self.is_error {
            return self.access.fail("error");
        }
        let Some(tokens) = tokens else { return self.watch.end_uncounted("stop") };
        self.access.set_tokens(tokens.into());
        self.slot.set_tokens(tokens);
        self.watch.set_tokens(tokens.into());
        let is_cut = self.limit.is_some_and(|limit| tokens >= limit);
        self.watch.end(if is_cut { "length" } else { "stop" });
        self.proxy.generated.inc_by(tokens.into());
        let Proxy { lengths, queue, .. } = &*self.proxy;
        lengths.learn(&self.features, self.predicted, tokens);
        queue.trust_predictions(|| lengths.standing().trusted);
    }
}

/// The body of the answer.
pub(super) struct Answer {
    body: Incoming,
    count: TokenCount,
    limits: Limits,
    /// `None` after the end.
    served: Option<Served>,
}

impl Answer {
    /// The answer `body` of a type that `count` counts, within `limits`.
    pub(super) fn new(body: Incoming, count: TokenCount, limits: Limits, served: Served) -> Answer {
        let mut answer = Answer { body, count, limits, served: Some(served) };
        // A body without a byte is not polled.
        answer.end_if_whole();
        answer
    }

    fn end_if_whole(&mut self) {
        if self.body.is_end_stream() {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(served) = self.served.take() {
            served.end(self.count.total());
        }
    }

    fn take_in(&mut self, bytes: &Bytes) {
        let events = self.count.add(bytes);
        if events > 0 {
            self.limits.first = None;
        }
        if let Some(served) = &mut self.served {
            (0..events).for_each(|_| served.watch.token(|| None));
            served.access.add_tokens(events.into());
        }
    }

    /// The end by a limit: an event with the error, where the answer is a stream of events.
    fn cut(&mut self, error: &ApiError) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(served) = self.served.take() {
            served.access.fail(reason(error));
        }
        Poll::Ready(match &self.count {
            TokenCount::Events(_) => {
                Some(Ok(Frame::data(format!("\n\ndata: {}\n\n", error.body()).into())))
            }
            _ => Some(Err(axum::Error::new(error.message().to_owned()))),
        })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.served.is_some()
            && let Poll::Ready(error) = self.limits.poll(cx)
        {
            return self.cut(&error);
        }
        if self.served.is_none() && !self.body.is_end_stream() {
            // Cut.
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    self.take_in(bytes);
                }
                self.end_if_whole();
            }
            None => self.end(),
            Some(Err(_)) => {
                if let Some(served) = self.served.take() {
                    served.access.fail("error");
                }
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
