//! Answers on their way out: one object, or a stream of server-sent events.

use std::future;
use std::marker::PhantomData;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use serde::Serialize;

use super::choice::{Choice, Delta};
use super::error::ApiError;
use super::sampling::Options;
use super::state::{ServerState, unix_time};
use super::wire::{Envelope, Usage};
use crate::random;

/// What differs between the endpoints' answers.
pub trait Dialect: Send + Sync + 'static {
    /// How an answer's id begins.
    const ID_PREFIX: &'static str;
    /// `object` of a whole answer.
    const OBJECT: &'static str;
    /// `object` of a piece.
    const PIECE_OBJECT: &'static str;
    /// A whole answer's choice.
    type Choice: Serialize + Send;
    /// A piece's choice.
    type Piece: Serialize + Send;

    /// The piece that opens an answer, where there is one.
    fn opening(index: usize) -> Option<Self::Piece>;
    /// A piece.
    fn piece(delta: Delta) -> Self::Piece;
    /// A whole answer.
    fn choice(whole: Delta) -> Self::Choice;
}

/// Answers with the `choices` under way: at once with all of it, or piece by piece.
pub async fn reply<D: Dialect>(
    state: &ServerState,
    options: &Options,
    choices: Vec<Choice>,
    usage: Usage,
) -> Result<Response, ApiError> {
    let head = Head::<D> {
        id: format!("{}{}", D::ID_PREFIX, random::name()),
        created: unix_time(),
        model: state.name.clone(),
        dialect: PhantomData,
    };
    match options.stream.unwrap_or(false) {
        true => Ok(streamed(head, choices, usage, options.include_usage())),
        false => whole(head, choices, usage).await,
    }
}

/// What all pieces of an answer repeat.
struct Head<D> {
    id: String,
    created: u64,
    model: String,
    dialect: PhantomData<D>,
}

impl<D: Dialect> Head<D> {
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

async fn whole<D: Dialect>(
    head: Head<D>,
    choices: Vec<Choice>,
    mut usage: Usage,
) -> Result<Response, ApiError> {
    let wholes = try_join_all(choices.into_iter().map(Choice::complete)).await?;
    wholes.iter().for_each(|whole| usage.add(whole.tokens));
    let choices = wholes.into_iter().map(D::choice).collect();
    let envelope = Envelope { usage: Some(usage), ..head.envelope(D::OBJECT, choices) };
    Ok(Json(envelope).into_response())
}

fn streamed<D: Dialect>(
    head: Head<D>,
    choices: Vec<Choice>,
    usage: Usage,
    include_usage: bool,
) -> Response {
    let openings: Vec<_> = (0..choices.len()).filter_map(D::opening).collect();
    let openings: Vec<_> =
        openings.into_iter().map(|piece| head.event(vec![piece], None)).collect();
    let narrator = Narrator { head, open: choices.len(), usage, include_usage };
    let deltas = stream::select_all(choices.into_iter().map(|choice| Box::pin(choice.deltas())));
    let events = deltas
        .scan(narrator, |narrator, delta| future::ready(narrator.tell(delta)))
        .flat_map(stream::iter);
    Sse::new(stream::iter(openings).chain(events)).keep_alive(KeepAlive::default()).into_response()
}

/// An event, or why it could not be put into JSON.
type Sent = Result<Event, axum::Error>;

impl<D: Dialect> Head<D> {
    fn event(&self, pieces: Vec<D::Piece>, usage: Option<Usage>) -> Sent {
        Event::default().json_data(Envelope { usage, ..self.envelope(D::PIECE_OBJECT, pieces) })
    }
}

/// Tells a stream's reader what happens, to the end.
struct Narrator<D> {
    head: Head<D>,
    /// Answers that have not ended.
    open: usize,
    usage: Usage,
    include_usage: bool,
}

impl<D: Dialect> Narrator<D> {
    /// The events of one piece; `None` once all is said.
    fn tell(&mut self, delta: Result<Delta, ApiError>) -> Option<Vec<Sent>> {
        if self.open == 0 {
            return None;
        }
        let delta = match delta {
            Ok(delta) => delta,
            Err(error) => {
                // The status is sent already: the error can only be told in the stream.
                self.open = 0;
                return Some(vec![Event::default().json_data(error.body())]);
            }
        };
        self.usage.add(delta.tokens);
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
