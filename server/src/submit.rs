//! Submits the engine requests of an API request, one for each choice.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::json;
use trail_cli::{TextOptions, log_record, random};
use trail_runtime::engine::{Request, SamplingParams, SubmitError};

use crate::access::Access;
use crate::body_permit::{BodyPermit, HasLeft};
use crate::choice::{Choice, ChoiceOptions, Refused};
use crate::error::ApiError;
use crate::model_entry::ModelUse;
use crate::options::Options;
use crate::prompts::Prompts;
use crate::state::ServerState;

/// Maximum number of choices of one request: `n` times the number of prompts.
pub(crate) const MAX_CHOICES: usize = 128;

impl Options {
    /// Submits one engine request for each choice: all, or none if one is rejected. Predictions
    /// that take long are made, and grammars compiled, where texts are tokenized, under the same
    /// bounds.
    pub(crate) async fn submit(
        &self,
        state: &Arc<ServerState>,
        model: &ModelUse,
        access: &Arc<Access>,
        prompts: Prompts,
        permit: BodyPermit,
    ) -> Result<Vec<Choice>, ApiError> {
        if !model.engine.predicts_slowly() && !self.rules.take_long(&prompts) {
            return self.submit_all(state, model, access, &prompts, &|| false);
        }
        let (options, access) = (self.clone(), access.clone());
        let (state, model) = (state.clone(), model.clone());
        let (choices, _) = permit
            .run(move |has_left| options.submit_all(&state, &model, &access, &prompts, has_left))
            .await?;
        choices
    }

    fn submit_all(
        &self,
        state: &ServerState,
        model: &ModelUse,
        access: &Arc<Access>,
        prompts: &Prompts,
        has_left: HasLeft,
    ) -> Result<Vec<Choice>, ApiError> {
        let n = self.n.map_or(1, |n| n.get() as usize);
        let count = n.saturating_mul(prompts.ids.len());
        if n == 0 || count > MAX_CHOICES {
            let message =
                format!("n times the prompts is {count}: ask for 1 to {MAX_CHOICES} answers");
            return Err(ApiError::invalid_field("n", message));
        }
        if state.log_prompts {
            log_prompts(model, access, prompts);
        }
        let vocab_size = model.engine.model().config.vocab_size;
        let bias = self.rules.tokens.logit_bias(vocab_size)?;
        if has_left() {
            return Err(ApiError::interrupted());
        }
        let constraint = self.rules.constraint(model, prompts)?;
        // Once for all answers: it may be replaced meanwhile.
        let adapter = model.adapter(self.model.as_deref())?;
        access.use_tokens(prompts.ids.iter().map(|ids| ids.len() as u64).sum());
        let seed = self.seed.map_or_else(random::u64, |seed| i64::from(seed) as u64);
        let submit = |index: usize, initial_prediction| {
            let seed = seed_of_answer(seed, (index % n) as u64);
            let sampling = self.sampling(&model.sampling, prompts, seed);
            let prompt_logprobs = sampling.prompt_logprobs.filter(|_| self.reports(prompts, index));
            let sampling = SamplingParams { logit_bias: bias.clone(), prompt_logprobs, ..sampling };
            let request = self.request(state, model, access, prompts, index / n, sampling)?;
            let (constraint, adapter) = (constraint.clone(), adapter.clone());
            let request = Request { initial_prediction, constraint, adapter, ..request };
            Choice::submit(
                state,
                model,
                access,
                self.choice_options(model, prompts, index, index / n)?,
                request,
            )
            .map_err(|refused| match refused {
                Refused::ByEngine(error) => self.refusal(model, prompts, error),
                Refused::ByTime(error) => error,
            })
        };
        let mut choices: Vec<Choice> = Vec::with_capacity(count);
        for index in 0..count {
            if has_left() {
                return Err(ApiError::interrupted());
            }
            // All answers to a prompt have the first one's prediction.
            let same_prompt = choices.last().filter(|_| !index.is_multiple_of(n));
            let prediction = same_prompt.and_then(Choice::initial_prediction);
            // The choices before a refused one are dropped, too: none of the request is answered.
            let choice = submit(index, prediction).inspect_err(|_| access.fail("rejected"))?;
            choices.push(choice);
        }
        Ok(choices)
    }

    /// True if choice `index` is the first answer to its prompt.
    fn is_first(&self, index: usize) -> bool {
        index.is_multiple_of(self.n.map_or(1, |n| n.get() as usize))
    }

    /// True if choice `index` reports its prompt.
    fn reports(&self, prompts: &Prompts, index: usize) -> bool {
        prompts.each_reports || self.is_first(index)
    }

    /// The form in which choice `index`, an answer to prompt `prompt`, is reported.
    fn choice_options(
        &self,
        model: &ModelUse,
        prompts: &Prompts,
        index: usize,
        prompt: usize,
    ) -> Result<ChoiceOptions, ApiError> {
        let parts = prompts.parts.clone();
        let parts = match self.rules.has_grammar(prompts) {
            true => parts.under_a_grammar(&model.tokenizer),
            false => parts,
        };
        Ok(ChoiceOptions {
            index,
            is_first: self.is_first(index),
            echo: prompts.echo.get(prompt).cloned().unwrap_or_default(),
            echo_top: prompts.echo_top(),
            prompt_logprobs: prompts.prompt_logprobs.filter(|_| self.reports(prompts, index)),
            logprobs: prompts.top_logprobs.is_some(),
            limits: self.time_limits(),
            progress: self.progress(),
            answers: self.n.map_or(1, |n| n.get() as usize) * prompts.ids.len(),
            token_ids: self.return_token_ids.unwrap_or(false),
            stops: self.stops()?,
            text: TextOptions {
                kept: parts.tokens(&model.tokenizer),
                keep_special: !self.skip_special_tokens.unwrap_or(true),
                include_stop: self.include_stop_str_in_output.unwrap_or(false),
            },
            parts,
        })
    }

    /// The engine's refusal, in the endpoint's names of fields.
    fn refusal(&self, model: &ModelUse, prompts: &Prompts, error: SubmitError) -> ApiError {
        match error {
            SubmitError::Constraint(why) => match self.rules.field(prompts) {
                Some(field) => ApiError::invalid_field(field, why),
                None => ApiError::invalid(why),
            },
            SubmitError::Sampling(why) if why.starts_with("top_logprobs ") => {
                ApiError::invalid_field(prompts.top_logprobs_field, why)
            }
            SubmitError::PromptLogprobs => {
                let field = prompts.prompt_logprobs.map_or("echo", |_| "prompt_logprobs");
                ApiError::invalid_field(field, error.to_string())
            }
            error => {
                let error = ApiError::of_submission(error, prompts.field, self.max_tokens_field());
                match error.status() {
                    StatusCode::TOO_MANY_REQUESTS => error.after(model.next_end_s()),
                    _ => error,
                }
            }
        }
    }
}

/// Writes each prompt as the model reads it, special tokens included.
fn log_prompts(model: &ModelUse, access: &Access, prompts: &Prompts) {
    for (index, ids) in prompts.ids.iter().enumerate() {
        let prompt = model.tokenizer.decode(ids, false);
        let (id, tokens) = (&access.id, ids.len());
        let fields =
            json!({ "request_id": id, "index": index, "prompt_tokens": tokens, "prompt": prompt });
        log_record(format_args!("prompt of {id}, {tokens} tokens: {prompt}"), "prompt", &fields);
    }
}

/// The seed of answer `index` to one prompt. The first has the request's own; the others' do not
/// meet those of other seeds as consecutive numbers would.
fn seed_of_answer(seed: u64, index: u64) -> u64 {
    // Steele, Lea and Flood's SplitMix64 finalizer, a bijection, of both after another.
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    match index {
        0 => seed,
        index => mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ index),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::seed_of_answer;

    #[test]
    fn seeds_of_several_answers_do_not_overlap() {
        let signed = [-3i64, -2, -1, 0, 1, 2, 3, 4, 5, i64::MIN, i64::MAX];
        let seeds = signed.map(|seed| seed as u64);
        assert!(seeds.iter().all(|&seed| seed_of_answer(seed, 0) == seed));
        let all: HashSet<u64> =
            seeds.iter().flat_map(|&seed| (0..128).map(move |n| seed_of_answer(seed, n))).collect();
        assert_eq!(all.len(), seeds.len() * 128);
    }
}
