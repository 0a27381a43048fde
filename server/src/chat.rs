//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trail_runtime::text::ChatOptions;
use utoipa::ToSchema;

use crate::access::Access;
use crate::answer_parts::CallPiece;
use crate::body::{Admitted, Body};
use crate::chat_message::{Message, Text, joined};
use crate::conversation::Conversation;
use crate::delta::Delta;
use crate::envelope::{Envelope, SharedPrompt, Usage};
use crate::error::ApiError;
use crate::logprobs;
use crate::number::TopLogprobs;
use crate::openapi::Schemas;
use crate::options::Options;
use crate::prompts::Prompts;
use crate::reply::{Endpoint, reply};
use crate::state::Shared;
use crate::template_fields::TemplateFields;
use crate::tools::{Tool, ToolChoice, Tools};
use crate::unsupported::{Field, Neutral};

#[derive(Deserialize, ToSchema)]
struct Fields {
    #[schema(min_items = 1)]
    messages: Vec<Message>,
    logprobs: Option<bool>,
    top_logprobs: Option<TopLogprobs>,
    prompt_logprobs: Option<TopLogprobs>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    prediction: Option<Predicted>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoice>,
    parallel_tool_calls: Option<bool>,
}

/// OpenAI's predicted output: a text that the answer is expected to repeat in part.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a type and a content")]
struct Predicted {
    #[serde(rename = "type")]
    _kind: PredictedKind,
    content: Text,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum PredictedKind {
    Content,
}

/// Fields of completions that would change the answer, and those of chats that are not supported.
const UNSUPPORTED: [Field; 3] =
    [("add_special_tokens", Neutral::False), ("echo", Neutral::False), ("prompt", Neutral::Null)];

/// Reads the fields of a request.
fn read(body: &Body) -> Result<(Fields, TemplateFields, Options), ApiError> {
    body.check(&UNSUPPORTED)?;
    body.check_integers()?;
    Ok((body.read()?, body.read()?, Options::read(body)?))
}

/// The schema of a request.
pub(crate) fn request(schemas: &mut Schemas) -> Value {
    let mut parts = vec![schemas.fields::<Fields>(), schemas.fields::<TemplateFields>()];
    parts.extend(Options::schemas_read(schemas));
    schemas.request("ChatRequest", parts, &[])
}

/// The schema of a whole answer.
pub(crate) fn response(schemas: &mut Schemas) -> Value {
    schemas.of::<ChatChoice>();
    schemas.named::<Envelope<ChatChoice>>("ChatResponse")
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
    let ((mut fields, template, options), mut permit) = admitted.read(read).await?;
    let model = state.model_for(options.model.as_deref(), &mut permit).await?;
    let top_logprobs = fields.top_logprobs()?;
    let tools = fields.tools().usable(&model)?;
    let form = model.template.call_form();
    let prompt_logprobs = options.prompt_logprobs(fields.prompt_logprobs)?;
    let conversation = Conversation {
        template,
        tools,
        options: fields.chat_options(state.allow_special_tokens)?,
        expected: fields.prediction.map(|predicted| joined(predicted.content)),
        turns: fields.messages.into_iter().map(|message| message.into_turn(form)).collect(),
        field: "messages",
    };
    let (prompts, permit) = conversation.encode(model.clone(), permit).await?;
    let prompts = Prompts { top_logprobs, prompt_logprobs, ..prompts };
    let usage = Usage::of_prompts(&prompts.ids);
    let choices = options.submit(&state, &model, &access, prompts, permit).await?;
    reply::<Chat>(&model, &options, choices, usage).await
}

impl Fields {
    /// The tools, taken out of the fields.
    fn tools(&mut self) -> Tools {
        Tools {
            list: self.tools.take().unwrap_or_default(),
            choice: self.tool_choice.take().unwrap_or_default(),
            parallel: self.parallel_tool_calls.unwrap_or(true),
        }
    }

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

#[derive(Serialize, ToSchema)]
struct ChatChoice {
    index: usize,
    message: Turn,
    #[schema(required)]
    logprobs: Option<Value>,
    #[schema(required)]
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
#[derive(Serialize, ToSchema)]
#[schema(as = ChatAnswer)]
struct Turn {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    /// Null beside calls alone.
    #[schema(required)]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

impl Turn {
    fn new(role: Option<&'static str>, delta: &mut Delta, tool_calls: Vec<ToolCall>) -> Turn {
        let text = std::mem::take(&mut delta.text);
        let is_null = text.is_empty() && !tool_calls.is_empty();
        let reasoning_content = std::mem::take(&mut delta.reasoning);
        let content = (!is_null).then_some(text);
        Turn { role, reasoning_content, content, tool_calls }
    }
}

/// A call of a tool, or a piece of one.
#[derive(Serialize, ToSchema)]
struct ToolCall {
    /// Of a piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CalledFunction)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl ToolCall {
    fn new(piece: CallPiece, index: Option<usize>) -> ToolCall {
        let (id, name) = piece.begins.unzip();
        let kind = id.as_ref().map(|_| "function");
        ToolCall { index, id, kind, function: Function { name, arguments: piece.arguments } }
    }
}

impl Endpoint for Chat {
    const ID_PREFIX: &'static str = "chatcmpl-";
    const OBJECT: &'static str = "chat.completion";
    const PIECE_OBJECT: &'static str = "chat.completion.chunk";
    type Choice = ChatChoice;
    type Piece = ChatPiece;

    /// The role comes with the first text: a client may take the first chunk for the first token.
    fn piece(mut delta: Delta) -> ChatPiece {
        let calls = std::mem::take(&mut delta.calls);
        let calls = calls.into_iter().map(|call| (call.index, call));
        let calls = calls.map(|(index, call)| ToolCall::new(call, Some(index))).collect();
        ChatPiece {
            index: delta.index,
            delta: Turn::new(delta.is_first.then_some("assistant"), &mut delta, calls),
            logprobs: delta.scored.as_deref().map(logprobs::of_chat),
            finish_reason: delta.finish,
            token_ids: delta.token_ids,
        }
    }

    fn choice(mut whole: Delta) -> ChatChoice {
        let calls = whole.whole_calls().into_iter().map(|call| ToolCall::new(call, None));
        let calls = calls.collect();
        ChatChoice {
            index: whole.index,
            message: Turn::new(Some("assistant"), &mut whole, calls),
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
