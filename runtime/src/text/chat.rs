//! Rendering of conversations by the model's chat template.

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::bounds;
use super::breaks::{BREAK, keep_break_characters};
use super::chat_error::ChatError;
use super::deep_stack::on_deep_stack;
use super::dry_run::{self, CallForm};
use super::environment::{self, NAME, environment};
#[cfg(feature = "template-metering")]
use super::metering;
use super::ordered_json::{OrderedMembers, map_members};
use super::template_file::{template_of, token, utf8};
use super::tokenizer::Tokenizer;
use crate::model::LoadError;
use crate::model::fields::Fields;
use crate::model::files::{model_folder, read_json_if_present};

/// Roles whose names a template may compare, or make control tokens of, such as `<|user|>`.
const ROLES: [&str; 8] =
    ["system", "user", "assistant", "tool", "function", "ipython", "observation", "model"];
/// Roles whose messages are the model's own or that of its operator.
const TRUSTED_ROLES: [&str; 2] = ["system", "assistant"];
/// Special tokens that transformers passes to a template if the tokenizer has them, besides those
/// at the begin and the end of a sequence.
const SPECIAL_TOKENS: [&str; 5] =
    ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The list of the others.
const FURTHER_TOKENS: &str = "additional_special_tokens";
/// Variables of a template that are set by other means than by a client's choice of names.
const OWN_VARIABLES: [&str; 8] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    FURTHER_TOKENS,
];

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Role of the speaker: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message; `None` for calls of tools alone.
    pub content: Option<String>,
    /// Name of the speaker, or of the tool whose result the message is; a template can write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of the tool call whose result the message is; a template can write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// All other fields, such as `tool_calls` and `reasoning_content`; a template can read them.
    #[serde(flatten)]
    pub other: OrderedMembers,
}

impl ChatMessage {
    /// A message of `role`, without name and tool call.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        let content = Some(content.into());
        ChatMessage { role: role.into(), content, ..ChatMessage::default() }
    }
}

/// Options of rendering a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatOptions {
    /// Opens the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Ends within the final message, for the model to continue it.
    pub continue_final_message: bool,
    /// Special tokens are control tokens in all messages. By default they are text in roles and in
    /// messages of all roles but `system` and `assistant`.
    pub allow_special_tokens: bool,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions {
            add_generation_prompt: true,
            continue_final_message: false,
            allow_special_tokens: false,
        }
    }
}

/// A conversation as one text, to be encoded by the tokenizer that it was rendered for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    /// Text with breaks where special tokens are text.
    text: String,
}

impl RenderedChat {
    /// The text without its breaks.
    pub fn plain_text(&self) -> String {
        self.text.replace(BREAK, "")
    }

    /// Returns true for an empty text.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Encodes the text. The template has written the beginning-of-sequence token where the model
    /// expects one, so the tokenizer does not add a second.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatError> {
        tokenizer.encode_broken(&self.text, false).map_err(ChatError::Encode)
    }
}

/// A model's chat template. Without one, every conversation is rejected.
pub struct ChatTemplate {
    /// `None` where the model has no template.
    environment: Option<Environment<'static>>,
    /// The file that has the template.
    file: String,
    /// Text of the beginning-of-sequence token; empty if there is none.
    bos_token: String,
    /// Text of the end-of-sequence token; empty if there is none.
    eos_token: String,
    /// Texts of the tokenizer's other special tokens, by their names in a template.
    special_tokens: BTreeMap<&'static str, Value>,
    /// The reason for which the model's template cannot be used.
    broken: Option<String>,
    /// Limits of the template, a phrase each.
    limits: Vec<String>,
    /// The text has what the variable `tools` describes.
    shows_tools: bool,
    /// Form of messages with calls.
    call_form: CallForm,
}

impl ChatTemplate {
    /// Loads the template of the model at `path` (the folder, or a file in it): the file
    /// `chat_template.jinja`, else the key `chat_template` of `tokenizer_config.json`.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let folder = model_folder(path);
        let config_file = folder.join("tokenizer_config.json");
        let config = read_json_if_present(&config_file)?.unwrap_or_else(|| b"{}".to_vec());
        let fields = Fields::parse(&config_file, &config)?;
        let jinja_file = folder.join("chat_template.jinja");
        let (file, source) = match read_json_if_present(&jinja_file)? {
            Some(bytes) => (&jinja_file, Some(utf8(&jinja_file, bytes)?)),
            None => (&config_file, template_of(&fields)?),
        };
        let (bos_token, eos_token) = (token(&fields, "bos_token")?, token(&fields, "eos_token")?);
        let fault = |error: ChatError| {
            let expected = "a Jinja template";
            let remedy = "correct it, or remove it and use /v1/completions";
            LoadError::new(file, NAME, expected, error.to_string(), remedy)
        };
        let template = Self::new(source, bos_token, eos_token).map_err(fault)?;
        let mut special_tokens = BTreeMap::new();
        for key in SPECIAL_TOKENS {
            if fields.get(key).is_some() {
                special_tokens.insert(key, Value::from(token(&fields, key)?));
            }
        }
        let further = fields.get(FURTHER_TOKENS).and_then(Json::as_array);
        if let Some(further) = further.filter(|further| !further.is_empty()) {
            let text = |entry: &Json| Some(entry.get("content").unwrap_or(entry).as_str()?.into());
            let texts: Vec<String> = further.iter().filter_map(text).collect();
            special_tokens.insert(FURTHER_TOKENS, texts.into());
        }
        ChatTemplate { special_tokens, ..template }.in_file(file).map_err(fault)
    }

    /// Compiles a template from its source; with `None`, every conversation is rejected.
    pub fn new(
        source: Option<String>,
        bos_token: String,
        eos_token: String,
    ) -> Result<Self, ChatError> {
        let compiled = on_deep_stack(|| source.map(environment).transpose());
        let environment = compiled.map_err(|error| ChatError::Render(error.to_string()))?;
        let environment = environment.map_err(|error| ChatError::Render(reason(&error)))?;
        let absent = ChatTemplate::absent();
        Ok(ChatTemplate { environment, file: NAME.into(), bos_token, eos_token, ..absent })
    }

    /// The same, read from `file`, and rendered with typical conversations.
    ///
    /// # Errors
    ///
    /// It renders no conversation.
    pub(super) fn in_file(self, file: &Path) -> Result<Self, ChatError> {
        let template = ChatTemplate { file: file.display().to_string(), ..self };
        if !template.is_present() {
            return Ok(template);
        }
        Ok(ChatTemplate {
            limits: dry_run::limits(&template)?,
            shows_tools: dry_run::shows_tools(&template),
            call_form: dry_run::call_form(&template),
            ..template
        })
    }

    /// Returns the limits of a loaded template, each a phrase such as "refuses a system message:
    /// no system role".
    pub fn limits(&self) -> &[String] {
        &self.limits
    }

    /// Returns true if a loaded template writes the tools that it is given.
    pub fn shows_tools(&self) -> bool {
        self.shows_tools
    }

    /// The form in which a loaded template takes messages with calls of tools.
    pub fn call_form(&self) -> CallForm {
        self.call_form
    }

    /// The source of the template; empty without one.
    pub fn source(&self) -> String {
        let template = self.environment.as_ref().and_then(|all| all.get_template(NAME).ok());
        template.map_or_else(String::new, |template| template.source().to_owned())
    }

    /// Returns true if `name` is a variable that a client cannot set by any name.
    pub fn owns(name: &str) -> bool {
        OWN_VARIABLES.contains(&name) || SPECIAL_TOKENS.contains(&name)
    }

    /// Names the filters, tests and methods that there are not, a phrase each.
    pub(super) fn missing(&self) -> Vec<String> {
        self.environment.as_ref().map_or_else(Vec::new, environment::missing)
    }

    /// Returns a template that rejects every conversation.
    pub fn absent() -> Self {
        ChatTemplate {
            environment: None,
            file: String::new(),
            bos_token: String::new(),
            eos_token: String::new(),
            special_tokens: BTreeMap::new(),
            broken: None,
            limits: Vec::new(),
            shows_tools: false,
            call_form: CallForm::default(),
        }
    }

    /// Returns a template that rejects every conversation for `reason`.
    pub fn broken(reason: String) -> Self {
        ChatTemplate { broken: Some(reason), ..ChatTemplate::absent() }
    }

    /// The reason for which the model's template cannot be used, if it has such a one.
    pub fn fault(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Returns true if the model has a template.
    pub fn is_present(&self) -> bool {
        self.environment.is_some()
    }

    /// Renders a conversation; `add_generation_prompt` opens the assistant's next turn.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with(messages, &OrderedMembers::new(), add_generation_prompt)
    }

    /// The same with further variables of the template, such as `tools`.
    fn render_with(
        &self,
        messages: &[ChatMessage],
        variables: &OrderedMembers,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_value(context! {
            messages => Serde(messages),
            add_generation_prompt,
            ..Value::from(Serde(variables))
        })
    }

    /// Renders a conversation whose members, such as `messages` and `tools`, are the template's
    /// variables. Servers take messages of text alone; see [`render`](Self::render).
    pub fn render_json(&self, conversation: &OrderedMembers) -> Result<String, ChatError> {
        self.render_value(Value::from(Serde(conversation)))
    }

    fn render_value(&self, conversation: Value) -> Result<String, ChatError> {
        let environment = self.environment.as_ref().ok_or_else(|| match &self.broken {
            Some(reason) => ChatError::Broken(reason.clone()),
            None => ChatError::NoTemplate,
        })?;
        let conversation = context! {
            ..conversation,
            ..context! {
                bos_token => self.bos_token.as_str(),
                eos_token => self.eos_token.as_str(),
                tools => (),
                documents => (),
            },
            ..Value::from_pairs(self.special_tokens.clone())
        };
        #[cfg(feature = "template-metering")]
        let render = || metering::render(environment, NAME, conversation);
        #[cfg(not(feature = "template-metering"))]
        let render = || bounds::render(environment, NAME, conversation);
        let rendered =
            on_deep_stack(render).map_err(|error| ChatError::Render(error.to_string()))?;
        rendered.map_err(|error| {
            let file = || self.file.clone();
            bounds::exceeded(&error).map_or_else(
                || ChatError::Render(reason(&error)),
                |limit| ChatError::Exceeds { template: file(), limit },
            )
        })
    }

    /// Renders a conversation for `tokenizer`, with further variables of the template, such as
    /// `tools` and `documents`. Special tokens in the variables' texts are text.
    pub fn render_for(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        variables: &OrderedMembers,
        options: ChatOptions,
    ) -> Result<RenderedChat, ChatError> {
        let text = |text: &str, trusted: bool| match trusted || options.allow_special_tokens {
            true => keep_break_characters(text).into_owned(),
            false => tokenizer.break_special(text).into_owned(),
        };
        let turn = |message: &ChatMessage| {
            let trusted = TRUSTED_ROLES.contains(&message.role.as_str());
            ChatMessage {
                role: text(&message.role, ROLES.contains(&message.role.as_str())),
                content: message.content.as_deref().map(|content| text(content, trusted)),
                name: message.name.as_deref().map(|name| text(name, false)),
                tool_call_id: message.tool_call_id.as_deref().map(|id| text(id, false)),
                other: map_members(&message.other, &|of| text(of, trusted)),
            }
        };
        let messages: Vec<ChatMessage> = messages.iter().map(turn).collect();
        let variables = map_members(variables, &|of| text(of, false));
        let mut text = self.render_with(&messages, &variables, options.add_generation_prompt)?;
        if options.continue_final_message {
            let last = messages.last().and_then(|message| message.content.as_deref());
            let last = last.unwrap_or_default();
            text.truncate(end_of_final(&text, last).ok_or(ChatError::NotContinued)?);
        }
        Ok(RenderedChat { text })
    }

    /// Renders and encodes a conversation.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        options: ChatOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let variables = OrderedMembers::new();
        self.render_for(tokenizer, messages, &variables, options)?.encode(tokenizer)
    }
}

/// The end of the final message in a rendered conversation, as transformers finds it: with the
/// message's spaces, or without those at its end if the template removes them.
fn end_of_final(text: &str, message: &str) -> Option<usize> {
    let start = text.rfind(message.trim())?;
    let kept = text[start..].starts_with(message.trim_start());
    Some(start + if kept { message.trim_start() } else { message.trim() }.len())
}

/// Returns the message that the template raised, or else the engine's description.
fn reason(error: &Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_string(),
        _ => error.to_string(),
    }
}
