//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trail_runtime::text::{ChatError, ChatMessage};

use super::body::{Admitted, Body};
use super::choice::Delta;
use super::error::ApiError;
use super::intake::BodyPermit;
use super::logprobs;
use super::reply::{Dialect, reply};
use super::sampling::{Options, Prompts};
use super::state::{ServerState, Shared};
use super::wire::Usage;

#[derive(Deserialize)]
struct Fields {
    messages: Vec<Message>,
    logprobs: Option<bool>,
    top_logprobs: Option<u8>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of parts of type text")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: PartKind,
    text: String,
}

/// A content part. Only text is supported: the models have no other modality.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartKind {
    Text,
}

impl Message {
    /// Converts the message to the form that chat templates read.
    fn turn(self) -> ChatMessage {
        let content = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let text = |part: Part| match part.kind {
                    PartKind::Text => part.text,
                };
                parts.into_iter().map(text).collect()
            }
        };
        // OpenAI renamed the system role; chat templates use the old name.
        let role = if self.role == "developer" { "system".into() } else { self.role };
        ChatMessage { role, content }
    }
}

/// The handler.
pub async fn create(State(state): Shared, admitted: Admitted) -> Result<Response, ApiError> {
    state.check_open()?;
    let read = |body: &Body| Ok((body.read::<Fields>()?, body.read::<Options>()?));
    let ((fields, options), permit) = admitted.read(read).await?;
    state.check_model(options.model.as_deref())?;
    let top_logprobs = fields.top_logprobs()?;
    let ids = vec![encode(state.clone(), fields.messages, permit).await?];
    let usage = Usage::of_prompts(&ids);
    let prompts = Prompts { ids, field: "messages", default_max_tokens: None, top_logprobs };
    let choices = options.submit(&state, &prompts)?;
    reply::<Chat>(&state, &options, choices, usage).await
}

impl Fields {
    fn top_logprobs(&self) -> Result<Option<u8>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => Err(ApiError::invalid_field(
                "top_logprobs",
                "'top_logprobs' needs 'logprobs': true",
            )),
        }
    }
}

/// Renders and encodes the conversation, with the generation prompt for the assistant's turn.
async fn encode(
    state: Arc<ServerState>,
    messages: Vec<Message>,
    permit: BodyPermit,
) -> Result<Vec<u32>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid_field(
            "messages",
            "there are no messages: give at least one",
        ));
    }
    let (ids, _) = permit
        .run(move |_| {
            let turns: Vec<_> = messages.into_iter().map(Message::turn).collect();
            let invalid = |error: ChatError| ApiError::invalid_field("messages", error.to_string());
            let text = state.template.render(&turns, true).map_err(invalid)?;
            state.check_text("messages", &text)?;
            let ids = state.tokenizer.encode(&text, false);
            ids.map_err(|error| invalid(ChatError::Encode(error)))
        })
        .await?;
    ids
}

/// Response objects of this endpoint.
struct Chat;

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: Turn,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ChatPiece {
    index: usize,
    delta: Turn,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

/// An assistant message, or a delta of one.
#[derive(Serialize)]
struct Turn {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: String,
}

impl Dialect for Chat {
    const ID_PREFIX: &'static str = "chatcmpl-";
    const OBJECT: &'static str = "chat.completion";
    const PIECE_OBJECT: &'static str = "chat.completion.chunk";
    type Choice = ChatChoice;
    type Piece = ChatPiece;

    fn opening(index: usize) -> Option<ChatPiece> {
        let delta = Turn { role: Some("assistant"), content: String::new() };
        Some(ChatPiece { index, delta, logprobs: None, finish_reason: None })
    }

    fn piece(delta: Delta) -> ChatPiece {
        ChatPiece {
            index: delta.index,
            delta: Turn { role: None, content: delta.text },
            logprobs: delta.scored.as_deref().map(logprobs::of_chat),
            finish_reason: delta.finish,
        }
    }

    fn choice(whole: Delta) -> ChatChoice {
        ChatChoice {
            index: whole.index,
            message: Turn { role: Some("assistant"), content: whole.text },
            logprobs: whole.scored.as_deref().map(logprobs::of_chat),
            finish_reason: whole.finish,
        }
    }
}
