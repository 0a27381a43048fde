//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's Messages API.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trail_runtime::text::{CallForm, ChatMessage, ChatOptions};
use utoipa::ToSchema;

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::body_permit::BodyPermit;
use crate::chat_message::{Text, joined};
use crate::conversation::Conversation;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, whole_answers};
use crate::message_blocks::Turn;
use crate::message_events::{Message, MessageEvents, MessageHead};
use crate::model_entry::ModelUse;
use crate::number::Count;
use crate::openapi::Schemas;
use crate::options::Options;
use crate::state::{ServerState, Shared};
use crate::structured_outputs::ResponseFormat;
use crate::template_fields::TemplateFields;
use crate::tools::{MessageTool, ToolChoice, Tools};
use crate::unsupported::{Field, Neutral};

/// Fields of Anthropic's that would change the answer and are not supported.
const UNSUPPORTED: [Field; 6] = [
    ("container", Neutral::Null),
    ("context_management", Neutral::Null),
    ("mcp_servers", Neutral::EmptyList),
    ("prompt_logprobs", Neutral::Null),
    // Theirs is `stop_sequences`.
    ("stop", Neutral::EmptyList),
    ("thinking", Neutral::DisabledType),
];

#[derive(Deserialize, ToSchema)]
struct Fields {
    #[serde(rename = "model")]
    _model: String,
    #[schema(min_items = 1)]
    messages: Vec<Turn>,
    system: Option<Text>,
    stop_sequences: Option<Vec<String>>,
    output_config: Option<OutputConfig>,
    /// The name of `output_config.format` in earlier versions of the API.
    output_format: Option<ResponseFormat>,
    tools: Option<Vec<MessageTool>>,
    tool_choice: Option<ToolChoice>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with a format")]
struct OutputConfig {
    format: Option<ResponseFormat>,
}

/// The part of the choice that is about the number of calls.
#[derive(Deserialize)]
struct Parallel {
    #[serde(rename = "tool_choice")]
    choice: Option<ParallelChoice>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with a type")]
struct ParallelChoice {
    disable_parallel_tool_use: Option<bool>,
}

/// The field that a message needs and its count does not.
#[derive(Deserialize, ToSchema)]
struct Length {
    #[serde(rename = "max_tokens")]
    _max_tokens: Count,
}

/// A request: what it shares with OpenAI's endpoints by name and meaning is in its options.
struct Request {
    system: Option<String>,
    turns: Vec<Turn>,
    tools: Tools,
    template: TemplateFields,
    options: Options,
}

fn read(body: &Body) -> Result<Request, ApiError> {
    body.check(&UNSUPPORTED)?;
    body.check_integers()?;
    let mut fields: Fields = body.read()?;
    let stop_sequences = fields.stop_sequences.take();
    let config = fields.output_config.take().and_then(|config| config.format);
    let mut options = Options::read(body)?.of_message(stop_sequences);
    for (field, format) in
        [("output_config", config), ("output_format", fields.output_format.take())]
    {
        options = options.in_form(format.unwrap_or_default().form(field)?)?;
    }
    if fields.messages.is_empty() {
        let message = "there are no messages: give at least one";
        return Err(ApiError::invalid_field("messages", message));
    }
    let only_one =
        body.read::<Parallel>()?.choice.and_then(|choice| choice.disable_parallel_tool_use);
    Ok(Request {
        system: fields.system.map(joined),
        turns: fields.messages,
        tools: Tools {
            list: fields
                .tools
                .unwrap_or_default()
                .into_iter()
                .map(|MessageTool(tool)| tool)
                .collect(),
            choice: fields.tool_choice.unwrap_or_default(),
            parallel: !only_one.unwrap_or(false),
        },
        template: body.read()?,
        options,
    })
}

/// The schema of a request.
pub(crate) fn request(schemas: &mut Schemas) -> Value {
    let mut parts = vec![schemas.fields::<Fields>(), schemas.fields::<TemplateFields>()];
    parts.extend(Options::schemas_read(schemas));
    parts.push(schemas.fields::<Length>());
    schemas.request("MessageRequest", parts, Options::IGNORED_BY_MESSAGES)
}

/// The schema of a request whose tokens are counted: its prompt alone matters.
pub(crate) fn count_request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Fields>(), schemas.fields::<TemplateFields>()];
    schemas.request("CountRequest", parts, &[])
}

/// The schema of a whole answer.
pub(crate) fn response(schemas: &mut Schemas) -> Value {
    schemas.of::<Message>()
}

/// The number of a prompt's tokens.
#[derive(Serialize, ToSchema)]
pub(crate) struct InputTokens {
    input_tokens: usize,
}

impl Request {
    /// The model, the conversation, and the options. A last turn of the assistant is continued.
    async fn conversation(
        self,
        state: &ServerState,
        permit: &mut BodyPermit,
    ) -> Result<(ModelUse, Conversation, Options), ApiError> {
        let model = state.model_for(self.options.model.as_deref(), permit).await?;
        let continues = self.turns.last().is_some_and(Turn::is_assistant);
        let form: CallForm = model.template.call_form();
        let system = self.system.map(|system| ChatMessage::new("system", system));
        let mut turns: Vec<ChatMessage> = system.into_iter().collect();
        self.turns.into_iter().for_each(|turn| turn.append(form, &mut turns));
        let conversation = Conversation {
            turns,
            expected: None,
            template: self.template,
            tools: self.tools.usable(&model)?,
            options: ChatOptions {
                add_generation_prompt: !continues,
                continue_final_message: continues,
                allow_special_tokens: state.allow_special_tokens,
            },
            field: "messages",
        };
        Ok((model, conversation, self.options))
    }
}

/// Answers a conversation.
pub(crate) async fn create(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<Response, ApiError> {
    state.check_open()?;
    let (request, mut permit) = admitted
        .read(|body| {
            let request = read(body)?;
            body.read::<Length>().map(|_| request)
        })
        .await?;
    let (model, conversation, options) = request.conversation(&state, &mut permit).await?;
    let (prompts, permit) = conversation.encode(model.clone(), permit).await?;
    let usage = Usage::of_prompts(&prompts.ids);
    let name = model.answering_name(options.model.as_deref());
    let choices = options.submit(&state, &model, &access, prompts, permit).await?;
    let head = MessageHead::new(&name);
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
) -> Result<Json<InputTokens>, ApiError> {
    state.check_open()?;
    let (request, mut permit) = admitted.read(read).await?;
    let (model, conversation, _) = request.conversation(&state, &mut permit).await?;
    let (prompts, _) = conversation.encode(model, permit).await?;
    Ok(Json(InputTokens { input_tokens: prompts.ids[0].len() }))
}
