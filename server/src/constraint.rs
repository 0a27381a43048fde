//! From the fields of a request to the constraint of its answers.

use std::sync::Arc;

use trail_grammar::{Both, GrammarCompiler};
use trail_runtime::engine::Constraint;
use trail_runtime::text::Tokenizer;

use crate::body::Body;
use crate::error::ApiError;
use crate::structured_outputs::{AnswerForm, FormFields};
use crate::token_fields::TokenFields;

/// What the answers to a request may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerRules {
    pub form: Option<AnswerForm>,
    pub tokens: TokenFields,
}

impl AnswerRules {
    pub(crate) fn read(body: &Body) -> Result<AnswerRules, ApiError> {
        let form = body.read::<FormFields>()?.form()?;
        Ok(AnswerRules { form, tokens: body.read()? })
    }

    /// True if there is a grammar, whose compilation takes milliseconds.
    pub(crate) fn has_grammar(&self) -> bool {
        self.form.is_some()
    }

    /// The constraint of the answers; `None` for any answer.
    pub(crate) fn constraint(
        &self,
        compiler: &GrammarCompiler,
        tokenizer: &Tokenizer,
        vocab_size: usize,
    ) -> Result<Option<Arc<dyn Constraint>>, ApiError> {
        let rules = self.tokens.rules(tokenizer, vocab_size)?;
        let rules = rules.map(|rules| Arc::new(rules) as Arc<dyn Constraint>);
        let Some(AnswerForm { spec, field }) = &self.form else { return Ok(rules) };
        let grammar = compiler.compile(spec);
        let grammar: Arc<dyn Constraint> = grammar
            .map_err(|error| ApiError::invalid_field(*field, format!("'{field}': {error}")))?;
        Ok(Some(match rules {
            Some(rules) => Arc::new(Both(grammar, rules)),
            None => grammar,
        }))
    }
}
