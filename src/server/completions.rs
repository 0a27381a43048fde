//! `POST /v1/completions`.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::body::{Admitted, Body};
use super::choice::Delta;
use super::error::ApiError;
use super::logprobs;
use super::prompt::Prompt;
use super::reply::{Dialect, reply};
use super::sampling::{Options, Prompts};
use super::state::Shared;
use super::wire::Usage;

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;

#[derive(Deserialize)]
struct Fields {
    prompt: Prompt,
    logprobs: Option<u8>,
}

/// The handler.
pub async fn create(State(state): Shared, admitted: Admitted) -> Result<Response, ApiError> {
    state.check_open()?;
    let read = |body: &Body| Ok((body.read::<Fields>()?, body.read::<Options>()?));
    let ((fields, options), permit) = admitted.read(read).await?;
    state.check_model(options.model.as_deref())?;
    let ids = fields.prompt.encode(state.clone(), permit).await?;
    if ids.is_empty() {
        return Err(ApiError::invalid_field("prompt", "there is no prompt: give at least one"));
    }
    let usage = Usage::of_prompts(&ids);
    let prompts = Prompts {
        ids,
        field: "prompt",
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        top_logprobs: fields.logprobs,
    };
    let choices = options.submit(&state, &prompts)?;
    reply::<Completion>(&state, &options, choices, usage).await
}

/// Response objects of this endpoint.
struct Completion;

/// A choice of a whole response or of a streamed chunk: the fields are the same.
#[derive(Serialize)]
struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

impl Dialect for Completion {
    const ID_PREFIX: &'static str = "cmpl-";
    const OBJECT: &'static str = "text_completion";
    const PIECE_OBJECT: &'static str = "text_completion";
    type Choice = CompletionChoice;
    type Piece = CompletionChoice;

    fn opening(_: usize) -> Option<CompletionChoice> {
        None
    }

    fn piece(delta: Delta) -> CompletionChoice {
        CompletionChoice {
            index: delta.index,
            text: delta.text,
            logprobs: delta.scored.as_deref().map(logprobs::of_completion),
            finish_reason: delta.finish,
        }
    }

    fn choice(whole: Delta) -> CompletionChoice {
        Completion::piece(whole)
    }
}
