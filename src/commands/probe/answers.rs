//! Answers to prompts by the engine, with activations of their rows.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use trail_cli::drive::{self, Display, TimedRequest};
use trail_cli::{EngineArgs, Error, Setup, count, notice};
use trail_platform::Rng;
use trail_platform::rng::mix;
use trail_runtime::engine::{Engine, PolicyKind, Request};
use trail_runtime::model::Adapter;
use trail_training::{Answer, Collected};

use super::activations::{Activations, sample_rows};
use crate::prompts::Prompt;

/// Maximum number of prompts of a run.
const MAX_PROMPTS: usize = 1 << 24;

/// Maximum number of tokens of an answer.
const MAX_TOKENS: i64 = 1 << 24;

/// Options of the answers.
#[derive(Args, Clone, Debug)]
pub struct AnswerArgs {
    /// First prompt of the file, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: usize,
    /// Most output tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=MAX_TOKENS))]
    pub max_tokens: u32,
    /// Temperature of the answers
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    pub temperature: f32,
    /// Seed of the answers and of the choice of rows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl AnswerArgs {
    /// `requests` prompts of `file` with their places in it; all after the first if `None`.
    pub fn selected(
        &self,
        file: &Path,
        prompts: Vec<Prompt>,
        requests: Option<usize>,
    ) -> Result<Vec<(usize, Prompt)>, Error> {
        let found = prompts.len();
        let after = found.saturating_sub(self.first);
        let requests = requests.unwrap_or(after);
        if requests == 0 || requests > after {
            return Err(Error::usage(format!(
                "--first is {}, --requests {requests}, and {} has {found} prompts: ask for fewer",
                self.first,
                file.display()
            )));
        }
        Ok(prompts.into_iter().enumerate().skip(self.first).take(requests).collect())
    }
}

/// Parses `--requests`.
pub fn requests(text: &str) -> Result<usize, String> {
    count::<MAX_PROMPTS>(text)
}

fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| "a number from 0 to 100".into())
}

/// An engine that answers, and a pass that computes activations.
pub struct Answering<'a> {
    setup: &'a Setup,
    args: &'a AnswerArgs,
    layers: &'a [usize],
    engine: Engine,
    activations: Activations,
    adapter: Option<Arc<Adapter>>,
}

impl<'a> Answering<'a> {
    /// Answers up to `requests` prompts at a time; keeps activations of `layers`.
    pub fn new(
        setup: &'a Setup,
        engine: &EngineArgs,
        args: &'a AnswerArgs,
        layers: &'a [usize],
        requests: usize,
    ) -> Result<Answering<'a>, Error> {
        let context = setup.model.config.max_context;
        let activations = Activations::new(setup, engine, layers, context)?;
        let engine =
            setup.engine_with(&engine.for_throughput(), PolicyKind::Fcfs, requests, None)?;
        Ok(Answering { setup, args, layers, engine, activations, adapter: None })
    }

    /// The same with the answers and activations of `adapter`.
    pub fn with_adapter(self, adapter: Option<Arc<Adapter>>) -> Answering<'a> {
        let activations = self.activations.with_adapter(adapter.clone());
        Answering { adapter, activations, ..self }
    }

    /// Answers `prompts`, and computes the activations of `rows` rows of each answer, or of all if
    /// that is 0. `display` counts each prompt twice.
    pub fn answer(
        &mut self,
        prompts: &[(usize, Prompt)],
        rows: usize,
        display: &mut Display,
    ) -> Result<Collected, Error> {
        let mut jobs = Vec::new();
        for (index, prompt) in prompts {
            match self.request(*index, prompt)? {
                Some(request) => jobs.push((*index, TimedRequest::first(request, 0.0))),
                None => notice(format_args!("prompt {index} fills the context: left out")),
            }
        }
        let (indices, jobs): (Vec<usize>, Vec<TimedRequest>) = jobs.into_iter().unzip();
        let engine = &self.engine;
        let answered =
            drive::run_on_wall_clock(engine, &jobs, |progress| display.show(progress, engine))?;
        let mut collected = Collected::new(self.layers, self.setup.model.config.hidden_size);
        let mut rng = Rng::new(self.args.seed ^ mix(indices.first().map_or(0, |&i| i as u64)));
        for ((index, job), outcome) in indices.iter().zip(jobs).zip(answered.outcomes) {
            let rows = sample_rows(outcome.tokens.len(), rows, &mut rng);
            let answer = Answer {
                index: *index as u32,
                prompt: job.request.prompt,
                tokens: outcome.tokens,
                stopped: outcome.stopped,
            };
            self.activations.add(&mut collected, answer, &rows);
            let done = collected.answers().len();
            display.draw(indices.len() + done, |_| format!("activations of {done} answers"));
        }
        Ok(collected)
    }

    /// The request for an answer; `None` if its prompt leaves no room for one.
    fn request(&self, index: usize, prompt: &Prompt) -> Result<Option<Request>, Error> {
        let mut request = prompt.request(self.setup, index, self.args.max_tokens)?;
        let room = self.setup.model.config.max_context.saturating_sub(request.prompt.len());
        request.max_tokens = request.max_tokens.min(room as u32);
        request.sampling.temperature = self.args.temperature;
        request.sampling.seed ^= self.args.seed;
        request.adapter = self.adapter.clone();
        Ok((room > 0).then_some(request))
    }
}
