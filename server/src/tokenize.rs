//! `POST /tokenize` and `POST /detokenize`, in the forms of vLLM and of llama.cpp's server.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trail_runtime::text::ChatOptions;
use utoipa::ToSchema;

use crate::body::{Admitted, Body};
use crate::chat_message::Message;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::number::Count;
use crate::openapi::Schemas;
use crate::served_model::ServedModel;
use crate::state::{ServerState, Shared};
use crate::template_fields::TemplateFields;
use crate::tools::{Tool, Tools};

/// A text by vLLM's name or by llama.cpp's, or the messages of a chat.
#[derive(Deserialize, ToSchema)]
struct Text {
    model: Option<String>,
    prompt: Option<String>,
    content: Option<String>,
    #[schema(min_items = 1)]
    messages: Option<Vec<Message>>,
    add_special_tokens: Option<bool>,
    /// llama.cpp's name of `add_special_tokens`, which is false by default there.
    add_special: Option<bool>,
    /// llama.cpp: false for special tokens as text.
    parse_special: Option<bool>,
    return_token_strs: Option<bool>,
    /// llama.cpp: ids with their text.
    with_pieces: Option<bool>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    tools: Option<Vec<Tool>>,
}

#[derive(Deserialize, ToSchema)]
struct Tokens {
    model: Option<String>,
    tokens: Vec<Count>,
}

/// The schema of a request for tokens.
pub(crate) fn request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Text>(), schemas.fields::<TemplateFields>()];
    schemas.request("TokenizeRequest", parts, &[])
}

/// The schema of a request for text.
pub(crate) fn text_request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Tokens>()];
    schemas.request("DetokenizeRequest", parts, &[])
}

/// The tokens of a text.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenizeResponse {
    count: usize,
    max_model_len: usize,
    /// Token ids; objects with `id` and `piece` if `with_pieces`.
    #[schema(value_type = Vec<Value>)]
    tokens: Value,
    #[schema(required)]
    token_strs: Option<Vec<String>>,
}

/// The text of tokens.
#[derive(Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    prompt: String,
    content: String,
}

fn read(body: &Body) -> Result<(Text, TemplateFields), ApiError> {
    body.check(&[])?;
    body.check_integers()?;
    Ok((body.read()?, body.read()?))
}

/// Counts and lists the tokens of a text, or of a conversation's prompt.
pub(crate) async fn tokenize(
    State(state): Shared,
    admitted: Admitted,
) -> Result<Json<TokenizeResponse>, ApiError> {
    let ((mut text, template), mut permit) = admitted.read(read).await?;
    let model = state.model_for(text.model.as_deref(), &mut permit).await?;
    let tokenizer = model.tokenizer.clone();
    let max_model_len = model.capacity;
    let (return_token_strs, with_pieces) = (text.return_token_strs, text.with_pieces);
    let ids = match (text.prompt.take(), text.content.take(), text.messages.take()) {
        (None, None, Some(messages)) => {
            let conversation = text.conversation(messages, template, (&state, &model))?;
            let (mut prompts, _) = conversation.encode(model, permit).await?;
            prompts.ids.swap_remove(0)
        }
        (Some(prompt), None, None) => {
            let add_special = text.add_special_tokens.unwrap_or(true);
            let encode = move || {
                model.check_text("prompt", &prompt)?;
                tokenized("prompt", model.tokenizer.encode(&prompt, add_special))
            };
            permit.run(move |_| encode()).await?.0?
        }
        (None, Some(content), None) => {
            let add_special = text.add_special.unwrap_or(false);
            let as_control = text.parse_special.unwrap_or(true);
            let encode = move || {
                model.check_text("content", &content)?;
                let encoded = match as_control {
                    true => model.tokenizer.encode(&content, add_special),
                    false => model.tokenizer.encode_text(&content, add_special),
                };
                tokenized("content", encoded)
            };
            permit.run(move |_| encode()).await?.0?
        }
        _ => {
            let message = "give one of 'prompt', 'content' and 'messages'";
            return Err(ApiError::invalid_field("prompt", message));
        }
    };
    let entry = |id: &u32| tokenizer.token(*id).unwrap_or_default();
    let strings =
        return_token_strs.unwrap_or(false).then(|| ids.iter().map(entry).collect::<Vec<_>>());
    let pieces = with_pieces.unwrap_or(false).then(|| {
        let piece = |&id: &u32| match String::from_utf8(tokenizer.token_bytes(id, false)) {
            Ok(text) => json!({ "id": id, "piece": text }),
            Err(bytes) => json!({ "id": id, "piece": bytes.into_bytes() }),
        };
        ids.iter().map(piece).collect::<Value>()
    });
    Ok(Json(TokenizeResponse {
        count: ids.len(),
        max_model_len,
        tokens: pieces.unwrap_or_else(|| json!(ids)),
        token_strs: strings,
    }))
}

fn tokenized<E: std::fmt::Display>(
    field: &str,
    encoded: Result<Vec<u32>, E>,
) -> Result<Vec<u32>, ApiError> {
    encoded.map_err(|error| ApiError::invalid_field(field, error.to_string()))
}

impl Text {
    fn conversation(
        self,
        messages: Vec<Message>,
        template: TemplateFields,
        (state, model): (&ServerState, &ServedModel),
    ) -> Result<Conversation, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        let opens = self.add_generation_prompt.unwrap_or(!continues);
        if continues && opens {
            return Err(ApiError::invalid_field(
                "continue_final_message",
                "'continue_final_message' excludes 'add_generation_prompt': leave one out",
            ));
        }
        if self.add_special_tokens == Some(true) {
            let message = "'add_special_tokens' is not for messages, as their template adds them";
            return Err(ApiError::invalid_field("add_special_tokens", message));
        }
        let list = self.tools.unwrap_or_default();
        let tools = Tools { list, ..Tools::default() }.usable(model)?;
        let form = model.template.call_form();
        let turns = messages.into_iter().map(|message| message.into_turn(form));
        Ok(Conversation {
            turns: turns.collect(),
            template,
            tools,
            expected: None,
            options: ChatOptions {
                add_generation_prompt: opens,
                continue_final_message: continues,
                allow_special_tokens: state.allow_special_tokens,
            },
            field: "messages",
        })
    }
}

/// Returns the text of tokens, by vLLM's name and by llama.cpp's.
pub(crate) async fn detokenize(
    State(state): Shared,
    admitted: Admitted,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let read = |body: &Body| body.check(&[]).and_then(|()| body.read::<Tokens>());
    let (fields, mut permit) = admitted.read(read).await?;
    let model = state.model_for(fields.model.as_deref(), &mut permit).await?;
    model.check_ids("tokens", fields.tokens.len())?;
    let vocab_size = model.engine.model().config.vocab_size;
    let ids: Vec<u32> = fields.tokens.iter().map(|id| id.get()).collect();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        let message = format!("there is no token {id}: the vocabulary has {vocab_size}");
        return Err(ApiError::invalid_field("tokens", message));
    }
    let (text, _) = permit.run(move |_| model.tokenizer.decode(&ids, false)).await?;
    Ok(Json(DetokenizeResponse { prompt: text.clone(), content: text }))
}
