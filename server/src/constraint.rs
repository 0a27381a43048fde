//! From the fields of a request to the constraint of its answers.

use std::sync::Arc;

use serde_json::Value;
use trail_grammar::{AfterReasoning, Both, GrammarSpec};
use trail_runtime::engine::Constraint;

use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::Schemas;
use crate::prompts::Prompts;
use crate::served_model::ServedModel;
use crate::structured_outputs::{FormFields, OutputForm, excluding};
use crate::token_fields::TokenFields;

/// The field that forces calls of tools.
const TOOL_CHOICE: &str = "tool_choice";

/// The allowed answers to a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerRules {
    pub form: Option<OutputForm>,
    pub tokens: TokenFields,
}

impl AnswerRules {
    pub(crate) fn read(body: &Body) -> Result<AnswerRules, ApiError> {
        let form = body.read::<FormFields>()?.form()?;
        Ok(AnswerRules { form, tokens: body.read()? })
    }

    /// The schemas of what is read.
    pub(crate) fn schemas_read(schemas: &mut Schemas) -> [Value; 2] {
        [schemas.fields::<FormFields>(), schemas.fields::<TokenFields>()]
    }

    /// True if there is a grammar.
    pub(crate) fn has_grammar(&self, prompts: &Prompts) -> bool {
        self.form.is_some() || prompts.forced_calls.is_some()
    }

    /// True if [`constraint`](Self::constraint) takes milliseconds.
    pub(crate) fn take_long(&self, prompts: &Prompts) -> bool {
        self.has_grammar(prompts) || self.tokens.has_words()
    }

    /// The field that gives the answers to `prompts` their form.
    pub(crate) fn field(&self, prompts: &Prompts) -> Option<&'static str> {
        let forced = prompts.forced_calls.as_ref().map(|_| TOOL_CHOICE);
        self.form.as_ref().map(|form| form.field).or(forced)
    }

    /// The constraint of the answers to `prompts`; `None` for any answer.
    pub(crate) fn constraint(
        &self,
        model: &ServedModel,
        prompts: &Prompts,
    ) -> Result<Option<Arc<dyn Constraint>>, ApiError> {
        let vocab_size = model.engine.model().config.vocab_size;
        let rules = self.tokens.rules(&model.tokenizer, vocab_size)?;
        let rules = rules.map(|rules| Arc::new(rules) as Arc<dyn Constraint>);
        let inner = match (&self.form, &prompts.forced_calls) {
            (None, None) => return Ok(rules),
            (Some(form), Some(_)) => return Err(excluding(form.field, TOOL_CHOICE)),
            (None, Some(lark)) => compiled(model, &GrammarSpec::Lark(lark.clone()), TOOL_CHOICE)?,
            (Some(form), None) => compiled(model, &form.spec, form.field)?,
        };
        let grammar = match prompts.parts.reasoning_tokens(&model.tokenizer) {
            Some((open, close)) => Arc::new(AfterReasoning { open, close, inner, vocab_size }),
            None => inner,
        };
        Ok(Some(match rules {
            Some(rules) => Arc::new(Both(grammar, rules)),
            None => grammar,
        }))
    }
}

fn compiled(
    model: &ServedModel,
    spec: &GrammarSpec,
    field: &'static str,
) -> Result<Arc<dyn Constraint>, ApiError> {
    match model.grammars.compile(spec) {
        Ok(grammar) => Ok(grammar),
        Err(error) => Err(ApiError::invalid_field(field, format!("'{field}': {error}"))),
    }
}
