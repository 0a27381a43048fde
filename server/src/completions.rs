//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::access::Access;
use crate::answer_parts::AnswerParts;
use crate::body::{Admitted, Body};
use crate::body_permit::HasLeft;
use crate::delta::Delta;
use crate::envelope::{Envelope, SharedPrompt, Usage};
use crate::error::ApiError;
use crate::logprobs::CompletionLogprobs;
use crate::number::TopLogprobs;
use crate::openapi::Schemas;
use crate::options::Options;
use crate::prompt::Prompt;
use crate::prompt_scores::PromptLogprobs;
use crate::prompts::Prompts;
use crate::reply::{Endpoint, reply};
use crate::state::Shared;
use crate::submit::MAX_CHOICES;
use crate::unsupported::{Field, Neutral};

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;

type CompletionPrompt = Prompt<MAX_CHOICES>;

#[derive(Deserialize, ToSchema)]
struct Fields {
    prompt: CompletionPrompt,
    logprobs: Option<TopLogprobs>,
    echo: Option<bool>,
    prompt_logprobs: Option<TopLogprobs>,
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

/// The schema of a request.
pub(crate) fn request(schemas: &mut Schemas) -> Value {
    let mut parts = vec![schemas.fields::<Fields>()];
    parts.extend(Options::schemas_read(schemas));
    schemas.request("CompletionRequest", parts, &[])
}

/// The schema of a whole answer.
pub(crate) fn response(schemas: &mut Schemas) -> Value {
    schemas.of::<CompletionChoice>();
    schemas.named::<Envelope<CompletionChoice>>("CompletionResponse")
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
    let ((fields, options), mut permit) = admitted.read(read).await?;
    let model = state.model_for(options.model.as_deref(), &mut permit).await?;
    let prompt_logprobs = options.prompt_logprobs(fields.prompt_logprobs)?;
    let echoed = fields.echo.unwrap_or(false).then(|| fields.prompt.clone());
    let (ids, permit) = fields.prompt.encode(model.clone(), permit).await?;
    if ids.is_empty() {
        return Err(ApiError::invalid_field("prompt", "there is no prompt: give at least one"));
    }
    let usage = Usage::of_prompts(&ids);
    let (ids, echo, permit) = match echoed {
        None => (ids, Vec::new(), permit),
        Some(prompt) => {
            let (tokenizer, offsets) = (model.tokenizer.clone(), fields.logprobs.is_some());
            let echo = move |_: HasLeft| {
                let echo = prompt.echo(&tokenizer, &ids, offsets);
                (ids, echo)
            };
            let ((ids, echo), permit) = permit.run(echo).await?;
            (ids, echo, permit)
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
        parts: AnswerParts::default(),
        forced_calls: None,
        prompt_logprobs,
        each_reports: true,
    };
    let choices = options.submit(&state, &model, &access, prompts, permit).await?;
    reply::<Completion>(&model, &options, choices, usage).await
}

/// Response objects of this endpoint.
struct Completion;

/// A choice of a whole response or of a streamed chunk: the fields are the same.
#[derive(Serialize, ToSchema)]
struct CompletionChoice {
    index: usize,
    text: String,
    #[schema(required)]
    logprobs: Option<CompletionLogprobs>,
    #[schema(required)]
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Value>>)]
    prompt_logprobs: Option<PromptLogprobs>,
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
        let logprobs = delta.scored.map(|scored| {
            let mut columns = delta.echoed.unwrap_or_default();
            scored.iter().for_each(|scored| columns.push(scored, delta.prompt_chars));
            columns
        });
        CompletionChoice {
            index: delta.index,
            logprobs,
            text: delta.text,
            finish_reason: delta.finish,
            prompt_token_ids: delta.prompt_ids,
            prompt_logprobs: delta.prompt_logprobs,
            token_ids: delta.token_ids,
        }
    }

    fn choice(whole: Delta) -> CompletionChoice {
        Completion::piece(whole)
    }

    /// Each choice has its own, as there may be several prompts.
    fn shared_prompt(_: &mut Delta) -> SharedPrompt {
        SharedPrompt::default()
    }
}
