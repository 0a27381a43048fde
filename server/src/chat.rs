//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use trail_runtime::text::{ChatError, ChatMessage, ChatOptions, OrderedMembers};

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::body_permit::BodyPermit;
use crate::choice::Delta;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::logprobs;
use crate::number::TopLogprobs;
use crate::one_or_many::OneOrMany;
use crate::options::Options;
use crate::prompts::Prompts;
use crate::reply::{Endpoint, reply};
use crate::state::{ServerState, Shared};
use crate::unsupported::{Field, Neutral, is_neutral};

#[derive(Deserialize)]
struct Fields {
    messages: Vec<Message>,
    logprobs: Option<bool>,
    top_logprobs: Option<TopLogprobs>,
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

/// A message. Fields that its template could write, and that are not supported, must ask for
/// nothing.
#[derive(Deserialize)]
#[serde(expecting = "an object with a role and a content")]
struct Message {
    role: String,
    content: Option<OneOrMany<Part>>,
    name: Option<String>,
    tool_call_id: Option<String>,
    #[serde(default, rename = "tool_calls", deserialize_with = "no_tool_calls")]
    _tool_calls: (),
    #[serde(default, rename = "function_call", deserialize_with = "nothing")]
    _function_call: (),
    #[serde(default, rename = "audio", deserialize_with = "nothing")]
    _audio: (),
    #[serde(default, rename = "refusal", deserialize_with = "nothing")]
    _refusal: (),
    /// Further fields that a template may read, such as `reasoning_content`.
    #[serde(flatten)]
    other: OrderedMembers,
}

fn no_tool_calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    neutral(deserializer, Neutral::EmptyList)
}

fn nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    neutral(deserializer, Neutral::Null)
}

fn neutral<'de, D: Deserializer<'de>>(deserializer: D, neutral: Neutral) -> Result<(), D::Error> {
    match is_neutral(deserializer, neutral)? {
        true => Ok(()),
        false => Err(serde::de::Error::custom("it is not supported: leave it out")),
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object with a type and a text")]
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

fn joined(content: OneOrMany<Part>) -> String {
    let text = |part: Part| match part.kind {
        PartKind::Text => part.text,
    };
    match content {
        OneOrMany::One(text) => text,
        OneOrMany::Many(parts) => parts.into_iter().map(text).collect(),
    }
}

impl Message {
    /// Converts the message to the form that chat templates read.
    fn turn(self) -> ChatMessage {
        let content = self.content.map_or(String::new(), joined);
        // OpenAI renamed the system role; chat templates use the old name.
        let role = if self.role == "developer" { "system".into() } else { self.role };
        let Message { name, tool_call_id, other, .. } = self;
        ChatMessage { role, content, name, tool_call_id, other }
    }
}

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
    let chat = fields.chat_options(&state)?;
    let expected = fields.prediction.map(|predicted| joined(predicted.content));
    let texts = (fields.messages, expected);
    let ((ids, expected), permit) = encode(state.clone(), texts, chat, permit).await?;
    let ids = vec![ids];
    let usage = Usage::of_prompts(&ids);
    let prompts = Prompts {
        ids,
        expected,
        echo: Vec::new(),
        field: "messages",
        default_max_tokens: None,
        top_logprobs,
        top_logprobs_field: "top_logprobs",
    };
    let choices = options.submit(&state, &access, prompts, permit).await?;
    reply::<Chat>(&state, &options, choices, usage).await
}

impl Fields {
    /// The options of the chat template. A continued message needs no opening of the next one.
    fn chat_options(&self, state: &ServerState) -> Result<ChatOptions, ApiError> {
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
            allow_special_tokens: state.allow_special_tokens,
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

/// Renders and encodes the conversation, and encodes the expected text; returns the permit as well.
async fn encode(
    state: Arc<ServerState>,
    (messages, expected): (Vec<Message>, Option<String>),
    options: ChatOptions,
    permit: BodyPermit,
) -> Result<((Vec<u32>, Vec<u32>), BodyPermit), ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid_field(
            "messages",
            "there are no messages: give at least one",
        ));
    }
    let (ids, permit) = permit
        .run(move |_| {
            let turns: Vec<_> = messages.into_iter().map(Message::turn).collect();
            let invalid = |error: ChatError| ApiError::invalid_field("messages", error.to_string());
            let chat = state.template.render_for(&state.tokenizer, &turns, options);
            let chat = chat.map_err(invalid)?;
            let text = chat.plain_text();
            state.check_text("messages", &text)?;
            state.check_beginning("messages", &text)?;
            let ids = chat.encode(&state.tokenizer).map_err(invalid)?;
            let expected = expected.map(|text| state.encode_expected(&text)).transpose()?;
            Ok((ids, expected.unwrap_or_default()))
        })
        .await?;
    Ok((ids?, permit))
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

impl Endpoint for Chat {
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
