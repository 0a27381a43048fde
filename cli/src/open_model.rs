//! A model with its engine, as programs of other languages open it: by the options of the program.

use std::sync::Arc;

use clap::{Arg, CommandFactory, Parser};
use trail_runtime::engine::{Engine, Request, SamplingParams};
use trail_runtime::text::{StopMatcher, Tokenizer};

use trail_scheduler::BLOCK_TOKENS;

use crate::answer::Answer;
use crate::args::EngineArgs;
use crate::detokenizer::{Detokenizer, TextOptions};
use crate::error::Error;
use crate::model_args::ModelArgs;
use crate::parser_message::message_and_tip;
use crate::setup::Setup;

/// The options of a model and of its engine.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn parse(options: &[String]) -> Result<Options, Error> {
    Options::try_parse_from(options).map_err(|error| {
        let (message, tip) = message_and_tip(&error.to_string());
        Error::usage(tip.map_or(message.clone(), |tip| format!("{message}; {tip}")))
    })
}

/// A model, its texts, and its engine.
pub struct OpenModel {
    setup: Setup,
    engine: Engine,
    /// `None` if the model has no tokenizer: token ids can still be answered.
    tokenizer: Option<Arc<Tokenizer>>,
}

impl OpenModel {
    /// Loads a model and starts its engine. `options` are those of `trail-rt serve` on model,
    /// predictions, scheduling and device: `--model`, `PATH`, `--kv-blocks`, `64`.
    pub fn open(options: &[String]) -> Result<OpenModel, Error> {
        let options = parse(options)?;
        let setup = Setup::load(&options.model)?;
        let engine = setup.engine(&options.engine)?;
        let tokenizer = setup.tokenizer().ok();
        Ok(OpenModel { setup, engine, tokenizer })
    }

    /// Refuses the name of an option, `--kv-blocks`, that [`OpenModel::open`] does not know.
    pub fn check_name(name: &str) -> Result<(), Error> {
        let options = Options::command();
        let is_it = |of: &Arg| of.get_long() == name.strip_prefix("--");
        if options.get_arguments().any(is_it) { Ok(()) } else { parse(&[name.into()]).map(|_| ()) }
    }

    /// The model with its files.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The sampling parameters of a request that names none: those of the model's files.
    pub fn sampling(&self) -> Result<SamplingParams, Error> {
        self.setup.load_sampling_defaults()
    }

    /// The text of tokens; an error if the model has no tokenizer.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, Error> {
        Ok(self.setup.tokenizer()?.decode(tokens, skip_special))
    }

    /// Refuses texts of a prompt that together cannot fit a request, whatever their tokens are: to
    /// tokenize them would take seconds.
    pub fn check_room<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(()) };
        let blocks = self.engine.kv_blocks() * BLOCK_TOKENS as usize;
        let capacity = self.engine.model().config.max_context.min(blocks);
        let least: usize = texts.into_iter().map(|text| tokenizer.least_tokens(text)).sum();
        if least <= capacity {
            return Ok(());
        }
        Err(Error::usage(format!(
            "the engine has room for {capacity} tokens in a request, and the prompt has {least} at \
             least: shorten it"
        )))
    }

    /// Submits `request`, whose answer ends at any of `stops` too. Without a tokenizer the answer
    /// has no text, and stop strings are refused.
    pub fn submit(
        &self,
        request: Request,
        stops: Vec<String>,
        options: TextOptions,
    ) -> Result<Answer, Error> {
        let has_stops = !stops.is_empty();
        let stops = StopMatcher::new(stops).map_err(Error::usage)?;
        let text = match &self.tokenizer {
            None if has_stops => {
                return Err(Error::usage(
                    "the model has no tokenizer, which stop strings need: give stop tokens by their ids",
                ));
            }
            None => None,
            Some(tokenizer) => {
                let eos = &self.engine.model().config.eos_tokens;
                Some(Detokenizer::new(tokenizer.clone(), stops, &request, eos, options))
            }
        };
        Ok(Answer::new(self.engine.submit(request)?, text))
    }
}
