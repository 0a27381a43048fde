//! A conversation, rendered by the chat template and tokenized.

use trail_runtime::text::{ChatError, ChatMessage, ChatOptions};

use crate::answer_parts::AnswerParts;
use crate::body_permit::BodyPermit;
use crate::error::ApiError;
use crate::model_entry::ModelUse;
use crate::prompts::Prompts;
use crate::template_fields::TemplateFields;
use crate::tools::UsableTools;

/// The turns of a conversation.
pub(crate) struct Conversation {
    /// The turns; one at least.
    pub turns: Vec<ChatMessage>,
    /// A text that the answer is expected to repeat in part.
    pub expected: Option<String>,
    /// Variables of the template.
    pub template: TemplateFields,
    /// Tools that the model is shown.
    pub tools: Option<UsableTools>,
    /// Form of the prompt.
    pub options: ChatOptions,
    /// Name of the request field that holds the turns, for error messages.
    pub field: &'static str,
}

impl Conversation {
    /// Renders and encodes the turns; returns the permit as well.
    pub(crate) async fn encode(
        self,
        model: ModelUse,
        permit: BodyPermit,
    ) -> Result<(Prompts, BodyPermit), ApiError> {
        let Conversation { turns, expected, template, tools, options, field } = self;
        if turns.is_empty() {
            return Err(ApiError::invalid_field(field, "there are no messages: give at least one"));
        }
        let shown = tools.as_ref().map_or(&[][..], UsableTools::list);
        let variables = template.variables(shown)?;
        let (prompts, permit) = permit
            .run(move |_| {
                let invalid = |error: ChatError| ApiError::invalid_field(field, error.to_string());
                let chat = model.template.render_for(&model.tokenizer, &turns, &variables, options);
                let chat = chat.map_err(invalid)?;
                let text = chat.plain_text();
                let format = model.reasoning_format;
                let reasoning = format.parser(&text).map(|parser| (format, parser));
                let forced = tools.as_ref().map(|tools| tools.grammar(&model.tokenizer));
                let forced_calls = forced.transpose()?.flatten();
                model.check_text(field, &text)?;
                model.check_beginning(field, &text)?;
                let ids = chat.encode(&model.tokenizer).map_err(invalid)?;
                let expected = expected.map(|text| model.encode_expected(&text)).transpose()?;
                Ok(Prompts {
                    ids: vec![ids],
                    expected: expected.unwrap_or_default(),
                    echo: Vec::new(),
                    prompt_logprobs: None,
                    each_reports: false,
                    field,
                    default_max_tokens: None,
                    top_logprobs: None,
                    top_logprobs_field: "top_logprobs",
                    parts: AnswerParts {
                        reasoning,
                        tools: tools.as_ref().and_then(UsableTools::form),
                    },
                    forced_calls,
                })
            })
            .await?;
        Ok((prompts?, permit))
    }
}
