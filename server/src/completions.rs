//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::Access;
use crate::answer_form::AnswerForm;
use crate::body::{Admitted, Body};
use crate::choice::Delta;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::logprobs;
use crate::number::TopLogprobs;
use crate::options::Options;
use crate::prompt::Prompt;
use crate::prompts::Prompts;
use crate::reply::{Endpoint, reply};
use crate::state::Shared;
use crate::submit::MAX_CHOICES;
use crate::unsupported::{Field, Neutral};

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;

#[derive(Deserialize)]
struct Fields {
    prompt: Prompt<MAX_CHOICES>,
    logprobs: Option<TopLogprobs>,
    echo: Option<bool>,
}

/// Fields of chats that would change the answer.
const UNSUPPORTED: [Field; 8] = [
    ("add_generation_prompt", Neutral::Null),
    ("add_special_tokens", Neutral::True),
    ("chat_template_kwargs", Neutral::EmptyMap),
    ("continue_final_message", Neutral::False),
    ("documents", Neutral::EmptyList),
    ("messages", Neutral::Null),
    ("tool_choice", Neutral::NoTool),
    ("tools", Neutral::EmptyList),
];

/// Reads the fields of a request.
fn read(body: &Body) -> Result<(Fields, Options), ApiError> {
    body.check(&UNSUPPORTED)?;
    Ok((body.read()?, Options::read(body)?))
}

/// Reads a request as the handler does, for the fuzz target.
#[cfg(fuzzing)]
pub(crate) fn check(bytes: &[u8]) -> Result<(), ApiError> {
    read(&Body::new(bytes.to_vec().into())).map(drop)
}

/// The handler.
pub(crate) async fn create(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<Response, ApiError> {
    state.check_open()?;
    let ((fields, options), permit) = admitted.read(read).await?;
    state.check_model(options.model.as_deref())?;
    let echoed = fields.echoed()?;
    let (ids, permit) = fields.prompt.encode(state.clone(), permit).await?;
    if ids.is_empty() {
        return Err(ApiError::invalid_field("prompt", "there is no prompt: give at least one"));
    }
    let usage = Usage::of_prompts(&ids);
    let (echo, permit) = match echoed {
        None => (Vec::new(), permit),
        Some(Prompt::Texts(texts)) => (texts, permit),
        Some(Prompt::Ids(ids)) => {
            let tokenizer = state.tokenizer.clone();
            let decode = move |ids: &Vec<u32>| tokenizer.decode(ids, false);
            permit.run(move |_| ids.iter().map(decode).collect()).await?
        }
    };
    let prompts = Prompts {
        ids,
        expected: Vec::new(),
        echo,
        field: "prompt",
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        top_logprobs: fields.logprobs.map(TopLogprobs::get),
        top_logprobs_field: "logprobs",
        form: AnswerForm::default(),
        forced_calls: None,
    };
    let choices = options.submit(&state, &access, prompts, permit).await?;
    reply::<Completion>(&state, &options, choices, usage).await
}

impl Fields {
    /// The prompts, if they are to be repeated before the answers.
    fn echoed(&self) -> Result<Option<Prompt<MAX_CHOICES>>, ApiError> {
        match (self.echo.unwrap_or(false), self.logprobs) {
            (true, Some(_)) => Err(ApiError::invalid_field(
                "echo",
                "'echo' with 'logprobs' is not supported, as prompts have none: leave one out",
            )),
            (echo, _) => Ok(echo.then(|| self.prompt.clone())),
        }
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl Endpoint for Completion {
    const ID_PREFIX: &'static str = "cmpl-";
    const OBJECT: &'static str = "text_completion";
    const PIECE_OBJECT: &'static str = "text_completion";
    type Choice = CompletionChoice;
    type Piece = CompletionChoice;

    fn piece(delta: Delta) -> CompletionChoice {
        let scored = delta.scored.as_deref();
        CompletionChoice {
            index: delta.index,
            logprobs: scored.map(|scored| logprobs::of_completion(scored, delta.prompt_chars)),
            text: delta.text,
            finish_reason: delta.finish,
            prompt_token_ids: delta.prompt_ids,
            token_ids: delta.token_ids,
        }
    }

    fn choice(whole: Delta) -> CompletionChoice {
        Completion::piece(whole)
    }

    /// Each choice has its own, as there may be several prompts.
    fn shared_prompt(_: &mut Delta) -> Option<Vec<u32>> {
        None
    }
}
