//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's Messages API.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use trail_runtime::text::{ChatMessage, ChatOptions};

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::chat_message::{Part, joined};
use crate::conversation::Conversation;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, whole_answers};
use crate::message_events::{MessageEvents, MessageHead};
use crate::number::Count;
use crate::one_or_many::OneOrMany;
use crate::options::Options;
use crate::state::Shared;
use crate::unsupported::{Field, Neutral};

/// Fields of Anthropic's that would change the answer and are not supported.
const UNSUPPORTED: [Field; 7] = [
    ("container", Neutral::Null),
    ("context_management", Neutral::Null),
    ("mcp_servers", Neutral::EmptyList),
    ("output_config", Neutral::Null),
    ("output_format", Neutral::Null),
    ("prompt_logprobs", Neutral::Null),
    ("thinking", Neutral::DisabledType),
];

#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "model")]
    _model: String,
    messages: Vec<Turn>,
    system: Option<OneOrMany<Part>>,
    stop_sequences: Option<Vec<String>>,
}

/// The field that a message needs and its count does not.
#[derive(Deserialize)]
struct Length {
    #[serde(rename = "max_tokens")]
    _max_tokens: Count,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with a role and a content")]
struct Turn {
    role: Role,
    content: OneOrMany<Part>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

impl Fields {
    /// The turns with the system's before them. A last one of the assistant is continued.
    fn turns(self) -> (Vec<ChatMessage>, bool) {
        let continues = self.messages.last().is_some_and(|turn| turn.role == Role::Assistant);
        let system = self.system.map(|system| ChatMessage::new("system", joined(system)));
        let turn = |turn: Turn| ChatMessage::new(turn.role.name(), joined(turn.content));
        (system.into_iter().chain(self.messages.into_iter().map(turn)).collect(), continues)
    }
}

/// Reads a request: its turns, if the last one is continued, and the options that it shares with
/// OpenAI's endpoints by name and meaning.
fn read(body: &Body) -> Result<(Vec<ChatMessage>, bool, Options), ApiError> {
    body.check(&UNSUPPORTED)?;
    let mut fields: Fields = body.read()?;
    let stop_sequences = fields.stop_sequences.take();
    if fields.messages.is_empty() {
        let message = "there are no messages: give at least one";
        return Err(ApiError::invalid_field("messages", message));
    }
    let (turns, continues) = fields.turns();
    Ok((turns, continues, body.read::<Options>()?.of_message(stop_sequences)))
}

fn conversation(turns: Vec<ChatMessage>, continues: bool, allow_special: bool) -> Conversation {
    Conversation {
        turns,
        expected: None,
        options: ChatOptions {
            add_generation_prompt: !continues,
            continue_final_message: continues,
            allow_special_tokens: allow_special,
        },
        field: "messages",
    }
}

/// Answers a conversation.
pub(crate) async fn create(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<Response, ApiError> {
    state.check_open()?;
    let ((turns, continues, options), permit) = admitted
        .read(|body| {
            let fields = read(body)?;
            body.read::<Length>().map(|_| fields)
        })
        .await?;
    state.check_model(options.model.as_deref())?;
    let conversation = conversation(turns, continues, state.allow_special_tokens);
    let (prompts, permit) = conversation.encode(state.clone(), permit).await?;
    let usage = Usage::of_prompts(&prompts.ids);
    let choices = options.submit(&state, &access, prompts, permit).await?;
    let head = MessageHead::new(state.name());
    if options.stream.unwrap_or(false) {
        return Ok(MessageEvents::new(head, access, usage).respond(choices));
    }
    let mut wholes = whole_answers(choices).await?;
    Ok(Json(head.whole(wholes.swap_remove(0), usage)).into_response())
}

/// Counts the tokens of a conversation's prompt.
pub(crate) async fn count_tokens(
    State(state): Shared,
    admitted: Admitted,
) -> Result<Json<Value>, ApiError> {
    state.check_open()?;
    let ((turns, continues, options), permit) = admitted.read(read).await?;
    state.check_model(options.model.as_deref())?;
    let conversation = conversation(turns, continues, state.allow_special_tokens);
    let (prompts, _) = conversation.encode(state, permit).await?;
    Ok(Json(json!({ "input_tokens": prompts.ids[0].len() })))
}
