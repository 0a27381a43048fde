//! `/v1/responses`: OpenAI's Responses API for text and functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trail_runtime::text::{ChatMessage, ChatOptions};
use utoipa::ToSchema;

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::conversation::Conversation;
use crate::envelope::Usage;
use crate::error::ApiError;
use crate::event_stream::{EventSource, whole_answers};
use crate::number::Count;
use crate::one_or_many::OneOrMany;
use crate::openapi::Schemas;
use crate::options::Options;
use crate::response_events::ResponseEvents;
use crate::response_input::{self, Input, Item};
use crate::response_object::{Echoed, Outcome};
use crate::state::Shared;
use crate::structured_outputs::ResponseFormat;
use crate::template_fields::TemplateFields;
use crate::tools::{FlatTool, ToolChoice, Tools};
use crate::unsupported::{Field, Neutral};

/// Fields of this endpoint that would change the answer and are not supported.
const UNSUPPORTED: [Field; 9] = [
    ("background", Neutral::False),
    ("conversation", Neutral::Null),
    ("echo", Neutral::False),
    ("logprobs", Neutral::False),
    ("max_tool_calls", Neutral::Null),
    ("prompt", Neutral::Null),
    ("prompt_logprobs", Neutral::Null),
    ("stop", Neutral::EmptyList),
    ("top_logprobs", Neutral::Zero),
];
/// The one of the values of `include` that asks for something that answers without tools have.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Most entries of `metadata`, as in OpenAI's interface.
const MAX_METADATA: usize = 16;

#[derive(Deserialize, ToSchema)]
struct Fields {
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<Count>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    metadata: Option<BTreeMap<String, String>>,
    include: Option<Vec<String>>,
    tools: Option<Vec<FlatTool>>,
    tool_choice: Option<ToolChoice>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextFormat>,
    #[serde(rename = "truncation")]
    _truncation: Option<Truncation>,
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a format")]
struct TextFormat {
    format: Option<ResponseFormat>,
    #[serde(rename = "verbosity")]
    _verbosity: Option<Verbosity>,
}

/// The default alone: the models know no other.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Verbosity {
    Medium,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Truncation {
    Disabled,
}

/// Fields that a response repeats as they are.
#[derive(Deserialize)]
struct Repeated {
    #[serde(default)]
    tools: Option<Value>,
    #[serde(default)]
    tool_choice: Option<Value>,
}

/// A request: the items of its input, and what its response repeats.
struct Request {
    items: Vec<Item>,
    tools: Tools,
    template: TemplateFields,
    store: bool,
    echoed: Echoed,
    options: Options,
}

fn read(body: &Body) -> Result<Request, ApiError> {
    body.check(&UNSUPPORTED)?;
    body.check_integers()?;
    let fields: Fields = body.read()?;
    if fields.include.iter().flatten().any(|included| included == LOGPROBS) {
        let message = format!("'{LOGPROBS}' is not supported: leave it out");
        return Err(ApiError::invalid_field("include", message));
    }
    let metadata = fields.metadata.unwrap_or_default();
    if metadata.len() > MAX_METADATA {
        let message = format!("metadata has more than {MAX_METADATA} entries");
        return Err(ApiError::invalid_field("metadata", message));
    }
    let items = match fields.input {
        OneOrMany::One(text) => vec![Item::Message { role: "user".into(), text }],
        OneOrMany::Many(items) => items,
    };
    let repeated: Repeated = body.read()?;
    let parallel = fields.parallel_tool_calls.unwrap_or(true);
    let options = Options::read(body)?.of_response(fields.max_output_tokens);
    let format = fields.text.and_then(|text| text.format).unwrap_or_default();
    let echoed_format = format.echoed();
    let options = options.in_form(format.form("text.format")?)?;
    let store = fields.store.unwrap_or(true);
    let echoed = Echoed {
        // The one that answers is known once it is checked.
        model: String::new(),
        instructions: fields.instructions,
        max_output_tokens: fields.max_output_tokens.map(Count::get),
        previous_response_id: fields.previous_response_id,
        metadata,
        store,
        format: echoed_format,
        tools: repeated.tools.unwrap_or_else(|| json!([])),
        tool_choice: repeated.tool_choice.unwrap_or_else(|| json!("auto")),
        parallel_tool_calls: parallel,
    };
    let list = fields.tools.unwrap_or_default().into_iter().map(|FlatTool(tool)| tool).collect();
    let choice = fields.tool_choice.unwrap_or_default();
    let tools = Tools { list, choice, parallel };
    Ok(Request { items, tools, template: body.read()?, store, echoed, options })
}

/// The schema of a request.
pub(crate) fn request(schemas: &mut Schemas) -> Value {
    let mut parts = vec![schemas.fields::<Fields>(), schemas.fields::<TemplateFields>()];
    parts.extend(Options::schemas_read(schemas));
    schemas.request("ResponseRequest", parts, Options::IGNORED_BY_RESPONSES)
}

/// Answers an input.
pub(crate) async fn create(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<Response, ApiError> {
    state.check_open()?;
    let (request, mut permit) = admitted.read(read).await?;
    let Request { items, tools, template, store, echoed, options } = request;
    let model = state.model_for(options.model.as_deref(), &mut permit).await?;
    if items.is_empty() {
        return Err(ApiError::invalid_field("input", "the input is empty: give one message"));
    }
    let turns = response_input::turns(items, model.template.call_form());
    let turns = match &echoed.previous_response_id {
        None => turns,
        Some(id) => {
            let previous = state.responses.get(id, owner(&access));
            let previous = previous.ok_or_else(|| ApiError::no_previous_response(id))?;
            [&previous.turns[..], &turns].concat()
        }
    };
    // Those of an earlier response do not go on.
    let instructions =
        echoed.instructions.as_ref().map(|text| ChatMessage::new("system", text.clone()));
    let conversation = Conversation {
        turns: instructions.into_iter().chain(turns.iter().cloned()).collect(),
        expected: None,
        template,
        tools: tools.usable(&model)?,
        options: ChatOptions {
            allow_special_tokens: state.allow_special_tokens,
            ..ChatOptions::default()
        },
        field: "input",
    };
    let (prompts, permit) = conversation.encode(model.clone(), permit).await?;
    let usage = Usage::of_prompts(&prompts.ids);
    let sampling = options.sampling(&model.sampling, &prompts, 0);
    let choices = options.submit(&state, &model, &access, prompts, permit).await?;
    let echoed = Echoed { model: model.answering_name(options.model.as_deref()), ..echoed };
    let form = model.template.call_form();
    let outcome =
        Outcome::new((state.clone(), form), access, echoed, sampling, store.then_some(turns));
    if options.stream.unwrap_or(false) {
        return Ok(ResponseEvents::new(outcome, usage).respond(choices));
    }
    let mut wholes = whole_answers(choices).await?;
    Ok(Json(outcome.complete(wholes.swap_remove(0), usage)).into_response())
}

fn owner(access: &Access) -> Option<&str> {
    access.key().map(|key| key.name.as_str())
}

/// The id of a path, which may be no text.
fn response_id(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|rejection| ApiError::invalid(rejection.body_text()))
}

/// Returns a stored response.
pub(crate) async fn retrieve(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let id = response_id(id)?;
    let response = state.responses.get(&id, owner(&access));
    response
        .map(|response| Json(response.object.clone()))
        .ok_or_else(|| ApiError::no_such_response(&id))
}

/// The end of a stored response.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

/// Drops a stored response.
pub(crate) async fn delete(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Deleted>, ApiError> {
    let id = response_id(id)?;
    match state.responses.delete(&id, owner(&access)) {
        true => Ok(Json(Deleted { id, object: "response", deleted: true })),
        false => Err(ApiError::no_such_response(&id)),
    }
}
