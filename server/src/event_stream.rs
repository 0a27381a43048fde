//! Answers as a stream of server-sent events, in the dialect of an endpoint.

use std::future;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use trail_simulator::forecast::ArrivalForecast;

use crate::choice::Choice;
use crate::delta::Delta;
use crate::error::ApiError;

/// A server-sent event, or the error of its serialization.
pub(crate) type Sent = Result<Event, axum::Error>;

/// Converts the answers of a request to the events of a dialect.
pub(crate) trait EventSource: Send + Sized + 'static {
    /// The events of the next part of an answer.
    fn convert(&mut self, delta: Delta) -> Vec<Sent>;

    /// True after the end of the last answer.
    fn is_ended(&self) -> bool;

    /// The event of an error. The HTTP status is already sent: the stream alone can report it, and
    /// ends with it.
    fn fail(&mut self, error: &ApiError) -> Sent;

    /// The response that streams `choices`.
    fn respond(self, choices: Vec<Choice>) -> Response {
        let estimate = choices.iter().filter_map(Choice::estimate).reduce(slower);
        let parts = stream::select_all(choices.into_iter().map(|choice| Box::pin(choice.deltas())));
        let events = parts
            .scan((self, false), |(source, failed), part| {
                future::ready(next_events(source, failed, part))
            })
            .flat_map(stream::iter);
        let events = Sse::new(events).keep_alive(KeepAlive::default());
        // nginx buffers an answer that does not forbid it.
        let mut response = ([("x-accel-buffering", "no")], events).into_response();
        if let Some(estimate) = estimate {
            let ms = (estimate.last.median * 1e3).round() as u64;
            response.headers_mut().insert("x-trail-eta-ms", ms.into());
            response.headers_mut().insert("x-trail-queue-position", estimate.place.into());
        }
        response
    }
}

/// The one that ends later.
fn slower(one: ArrivalForecast, other: ArrivalForecast) -> ArrivalForecast {
    if one.last.median < other.last.median { other } else { one }
}

/// The events of `part`; `None` after the end of the stream.
fn next_events(
    source: &mut impl EventSource,
    failed: &mut bool,
    part: Result<Delta, ApiError>,
) -> Option<Vec<Sent>> {
    if *failed || source.is_ended() {
        return None;
    }
    Some(match part {
        Ok(delta) => source.convert(delta),
        Err(error) => {
            *failed = true;
            vec![source.fail(&error)]
        }
    })
}

/// Waits for all answers.
pub(crate) async fn whole_answers(choices: Vec<Choice>) -> Result<Vec<Delta>, ApiError> {
    try_join_all(choices.into_iter().map(Choice::complete)).await
}
