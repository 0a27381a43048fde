//! Responses: one object, or a stream of server-sent events.

use std::future;
use std::marker::PhantomData;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use serde::Serialize;

use crate::choice::{Choice, Delta};
use crate::envelope::{Envelope, Usage};
use crate::error::ApiError;
use crate::options::Options;
use crate::state::{ServerState, unix_time};
use trail_cli::random;

/// Response objects of one endpoint.
pub(crate) trait Endpoint: Send + Sync + 'static {
    /// Prefix of a response's id.
    const ID_PREFIX: &'static str;
    /// `object` field of a whole response.
    const OBJECT: &'static str;
    /// `object` field of a streamed chunk.
    const PIECE_OBJECT: &'static str;
    /// Choice of a whole response.
    type Choice: Serialize + Send;
    /// Choice of a streamed chunk.
    type Piece: Serialize + Send;

    /// First chunk of a choice, for endpoints that send one before any text.
    fn opening(index: usize) -> Option<Self::Piece>;
    /// Converts a delta to a chunk's choice.
    fn piece(delta: Delta) -> Self::Piece;
    /// Converts a complete answer to a choice.
    fn choice(whole: Delta) -> Self::Choice;
}

/// Responds with `choices`: as one object once all are complete, or as a stream.
pub(crate) async fn reply<D: Endpoint>(
    state: &ServerState,
    options: &Options,
    choices: Vec<Choice>,
    usage: Usage,
) -> Result<Response, ApiError> {
    let head = Head::<D> {
        id: format!("{}{}", D::ID_PREFIX, random::id()),
        created: unix_time(),
        model: state.name.clone(),
        dialect: PhantomData,
    };
    match options.stream.unwrap_or(false) {
        true => Ok(streamed(head, choices, usage, options.include_usage())),
        false => whole(head, choices, usage).await,
    }
}

/// Fields that every chunk of a response repeats.
struct Head<D> {
    id: String,
    created: u64,
    model: String,
    dialect: PhantomData<D>,
}

impl<D: Endpoint> Head<D> {
    fn envelope<C>(&self, object: &'static str, choices: Vec<C>) -> Envelope<C> {
        let Head { id, created, model, .. } = self;
        Envelope {
            id: id.clone(),
            object,
            created: *created,
            model: model.clone(),
            choices,
            usage: None,
        }
    }
}

async fn whole<D: Endpoint>(
    head: Head<D>,
    choices: Vec<Choice>,
    mut usage: Usage,
) -> Result<Response, ApiError> {
    let wholes = try_join_all(choices.into_iter().map(Choice::complete)).await?;
    wholes.iter().for_each(|whole| usage.add(whole));
    let choices = wholes.into_iter().map(D::choice).collect();
    let envelope = Envelope { usage: Some(usage), ..head.envelope(D::OBJECT, choices) };
    Ok(Json(envelope).into_response())
}

fn streamed<D: Endpoint>(
    head: Head<D>,
    choices: Vec<Choice>,
    usage: Usage,
    include_usage: bool,
) -> Response {
    let openings: Vec<_> = (0..choices.len()).filter_map(D::opening).collect();
    let openings: Vec<_> =
        openings.into_iter().map(|piece| head.event(vec![piece], None)).collect();
    let chunks = ChunkEvents { head, open: choices.len(), usage, include_usage };
    let deltas = stream::select_all(choices.into_iter().map(|choice| Box::pin(choice.deltas())));
    let events = deltas
        .scan(chunks, |chunks, delta| future::ready(chunks.convert(delta)))
        .flat_map(stream::iter);
    let events = Sse::new(stream::iter(openings).chain(events)).keep_alive(KeepAlive::default());
    // nginx buffers an answer that does not forbid it.
    ([("x-accel-buffering", "no")], events).into_response()
}

/// A server-sent event, or the error of its serialization.
type Sent = Result<Event, axum::Error>;

impl<D: Endpoint> Head<D> {
    fn event(&self, pieces: Vec<D::Piece>, usage: Option<Usage>) -> Sent {
        Event::default().json_data(Envelope { usage, ..self.envelope(D::PIECE_OBJECT, pieces) })
    }
}

/// Converts deltas to server-sent events.
struct ChunkEvents<D> {
    head: Head<D>,
    /// Number of choices that have not ended.
    open: usize,
    usage: Usage,
    include_usage: bool,
}

impl<D: Endpoint> ChunkEvents<D> {
    /// Returns the events of one delta; `None` after the end of the stream.
    fn convert(&mut self, delta: Result<Delta, ApiError>) -> Option<Vec<Sent>> {
        if self.open == 0 {
            return None;
        }
        let delta = match delta {
            Ok(delta) => delta,
            Err(error) => {
                // The HTTP status is already sent: the error can only be reported in the stream.
                self.open = 0;
                return Some(vec![Event::default().json_data(error.body())]);
            }
        };
        self.usage.add(&delta);
        self.open -= usize::from(delta.finish.is_some());
        let mut events = vec![self.head.event(vec![D::piece(delta)], None)];
        if self.open == 0 {
            if self.include_usage {
                events.push(self.head.event(Vec::new(), Some(self.usage)));
            }
            events.push(Ok(Event::default().data("[DONE]")));
        }
        Some(events)
    }
}
