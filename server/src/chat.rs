//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trail_runtime::text::{ChatMessage, ChatOptions};

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::chat_message::{Message, Part, joined};
use crate::choice::Delta;
use crate::conversation::Conversation;
use crate::envelope::{SharedPrompt, Usage};
use crate::error::ApiError;
use crate::logprobs;
use crate::number::TopLogprobs;
use crate::one_or_many::OneOrMany;
use crate::options::Options;
use crate::prompts::Prompts;
use crate::reply::{Endpoint, reply};
use crate::state::Shared;
use crate::unsupported::{Field, Neutral};

#[derive(Deserialize)]
struct Fields {
    messages: Vec<Message>,
    logprobs: Option<bool>,
    top_logprobs: Option<TopLogprobs>,
    prompt_logprobs: Option<TopLogprobs>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    prediction: Option<Predicted>,
}

/// OpenAI's predicted output: a text that the answer is expected to repeat in part.
#[derive(Deserialize)]
#[serde(expecting = "an object with a type and a content")]
struct Predicted {
    #[serde(rename = "type")]
    _kind: PredictedKind,
    content: OneOrMany<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PredictedKind {
    Content,
}

/// Fields of completions that would change the answer, and those of chats that are not supported.
const UNSUPPORTED: [Field; 3] =
    [("add_special_tokens", Neutral::False), ("echo", Neutral::False), ("prompt", Neutral::Null)];

/// Reads the fields of a request.
fn read(body: &Body) -> Result<(Fields, Options), ApiError> {
    body.check(&UNSUPPORTED)?;
    body.check_integers()?;
    Ok((body.read()?, body.read()?))
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
    let top_logprobs = fields.top_logprobs()?;
    let prompt_logprobs = options.prompt_logprobs(fields.prompt_logprobs)?;
    let conversation = Conversation {
        options: fields.chat_options(state.allow_special_tokens)?,
        expected: fields.prediction.map(|predicted| joined(predicted.content)),
        turns: fields.messages.into_iter().map(ChatMessage::from).collect(),
        field: "messages",
    };
    let (prompts, permit) = conversation.encode(state.clone(), permit).await?;
    let prompts = Prompts { top_logprobs, prompt_logprobs, ..prompts };
    let usage = Usage::of_prompts(&prompts.ids);
    let choices = options.submit(&state, &access, prompts, permit).await?;
    reply::<Chat>(&state, &options, choices, usage).await
}

impl Fields {
    /// The options of the chat template. A continued message needs no opening of the next one.
    fn chat_options(&self, allow_special_tokens: bool) -> Result<ChatOptions, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        if continues && self.add_generation_prompt == Some(true) {
            return Err(ApiError::invalid_field(
                "continue_final_message",
                "'continue_final_message' excludes 'add_generation_prompt': leave one out",
            ));
        }
        Ok(ChatOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            allow_special_tokens,
        })
    }

    fn top_logprobs(&self) -> Result<Option<u8>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs.map(TopLogprobs::get)) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => Err(ApiError::invalid_field(
                "top_logprobs",
                "'top_logprobs' needs 'logprobs': true",
            )),
        }
    }
}

/// Response objects of this endpoint.
struct Chat;

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: Turn,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct ChatPiece {
    index: usize,
    delta: Turn,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// An assistant message, or a delta of one.
#[derive(Serialize)]
struct Turn {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: String,
}

impl Endpoint for Chat {
    const ID_PREFIX: &'static str = "chatcmpl-";
    const OBJECT: &'static str = "chat.completion";
    const PIECE_OBJECT: &'static str = "chat.completion.chunk";
    type Choice = ChatChoice;
    type Piece = ChatPiece;

    /// The role comes with the first text: a client may take the first chunk for the first token.
    fn piece(delta: Delta) -> ChatPiece {
        ChatPiece {
            index: delta.index,
            delta: Turn { role: delta.is_first.then_some("assistant"), content: delta.text },
            logprobs: delta.scored.as_deref().map(logprobs::of_chat),
            finish_reason: delta.finish,
            token_ids: delta.token_ids,
        }
    }

    fn choice(whole: Delta) -> ChatChoice {
        ChatChoice {
            index: whole.index,
            message: Turn { role: Some("assistant"), content: whole.text },
            logprobs: whole.scored.as_deref().map(logprobs::of_chat),
            finish_reason: whole.finish,
            token_ids: whole.token_ids,
        }
    }

    fn shared_prompt(delta: &mut Delta) -> SharedPrompt {
        SharedPrompt {
            prompt_token_ids: delta.prompt_ids.take(),
            prompt_logprobs: delta.prompt_logprobs.take(),
        }
    }
}
