//! Responses of OpenAI's two text endpoints: one object, or a stream of server-sent events.

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::marker::PhantomData;
use trail_cli::random;

use crate::choice::Choice;
use crate::delta::Delta;
use crate::envelope::{Envelope, SharedPrompt, Usage};
use crate::error::ApiError;
use crate::event_stream::{EventSource, Sent, whole_answers};
use crate::model_entry::ModelUse;
use crate::options::Options;
use crate::state::unix_time;

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

    /// Converts a delta to a chunk's choice.
    fn piece(delta: Delta) -> Self::Piece;
    /// Converts a complete answer to a choice.
    fn choice(whole: Delta) -> Self::Choice;
    /// The report of the prompt that stands beside the choices instead of in them.
    fn shared_prompt(delta: &mut Delta) -> SharedPrompt;
}

/// Responds with `choices`: as one object once all are complete, or as a stream.
pub(crate) async fn reply<D: Endpoint>(
    used: &ModelUse,
    options: &Options,
    choices: Vec<Choice>,
    usage: Usage,
) -> Result<Response, ApiError> {
    let head = Head::<D> {
        id: format!("{}{}", D::ID_PREFIX, random::id()),
        created: unix_time(),
        model: used.answering_name(options.model.as_deref()),
        system_fingerprint: used.fingerprint.clone(),
        dialect: PhantomData,
    };
    if !options.stream.unwrap_or(false) {
        return whole(head, choices, usage).await;
    }
    let chunks = ChunkEvents {
        head,
        open: choices.len(),
        usage,
        include_usage: options.include_usage(),
        continuous_usage: options.continuous_usage(),
    };
    Ok(chunks.respond(choices))
}

/// Fields that every chunk of a response repeats.
struct Head<D> {
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    dialect: PhantomData<D>,
}

impl<D: Endpoint> Head<D> {
    fn envelope<C>(&self, object: &'static str, choices: Vec<C>) -> Envelope<'_, C> {
        let Head { id, created, model, system_fingerprint, .. } = self;
        Envelope {
            id,
            object,
            created: *created,
            model,
            system_fingerprint,
            choices,
            prompt: SharedPrompt::default(),
            trail: None,
            usage: None,
        }
    }

    /// The chunk that ends a stream with its counts.
    fn counts(&self, usage: Usage) -> Sent {
        let envelope = self.envelope::<D::Piece>(D::PIECE_OBJECT, Vec::new());
        Event::default().json_data(Envelope { usage: Some(usage), ..envelope })
    }
}

async fn whole<D: Endpoint>(
    head: Head<D>,
    choices: Vec<Choice>,
    mut usage: Usage,
) -> Result<Response, ApiError> {
    let mut wholes = whole_answers(choices).await?;
    wholes.iter().for_each(|whole| usage.add(whole));
    // That of the first choice, which has been asked for what the others have.
    let prompt = wholes.first_mut().map(D::shared_prompt).unwrap_or_default();
    let choices = wholes.into_iter().map(D::choice).collect();
    let envelope = head.envelope(D::OBJECT, choices);
    Ok(Json(Envelope { usage: Some(usage), prompt, ..envelope }).into_response())
}

/// Converts deltas to chunks.
struct ChunkEvents<D> {
    head: Head<D>,
    /// Number of choices that have not ended.
    open: usize,
    usage: Usage,
    include_usage: bool,
    /// Each chunk has the counts so far.
    continuous_usage: bool,
}

impl<D: Endpoint> EventSource for ChunkEvents<D> {
    fn convert(&mut self, delta: Delta) -> Vec<Sent> {
        self.usage.add(&delta);
        self.open -= usize::from(delta.finish.is_some());
        let usage = self.continuous_usage.then_some(self.usage);
        let event = |mut delta: Delta| {
            let prompt = D::shared_prompt(&mut delta);
            let trail = delta.progress.take();
            let envelope = self.head.envelope(D::PIECE_OBJECT, vec![D::piece(delta)]);
            Event::default().json_data(Envelope { usage, prompt, trail, ..envelope })
        };
        let mut events: Vec<Sent> = delta.pieces().into_iter().map(event).collect();
        if self.open == 0 {
            if self.include_usage {
                events.push(self.head.counts(self.usage));
            }
            events.push(Ok(Event::default().data("[DONE]")));
        }
        events
    }

    fn is_ended(&self) -> bool {
        self.open == 0
    }

    fn fail(&mut self, error: &ApiError) -> Sent {
        Event::default().json_data(error.body())
    }
}
