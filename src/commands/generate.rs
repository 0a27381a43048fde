//! `trail-rt generate`: one answer on stdout.

mod args;
mod record;

use std::ops::ControlFlow;

use trail_cli::{EngineArgs, Error, ModelArgs, Output, Setup};
use trail_platform::read::take_up_to;

use crate::answer;
pub use args::GenerateArgs;
use record::Record;
use trail_cli::{Detokenizer, TextOptions};

/// Largest prompt on stdin, MiB.
const MAX_PROMPT_MIB: u64 = 64;

/// Generates an answer, streamed as text or printed as one JSON object at the end.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &GenerateArgs,
    json: bool,
) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let prompt = prompt(&setup, args)?;
    let room = setup.model.config.max_context.saturating_sub(prompt.len());
    let mut request = args.request(&setup.load_sampling_defaults()?, prompt, room);
    request.adapter = args.lora.load_one(&setup.model.config)?;
    let stops = args.sampling.stops()?;
    let tokenizer = match args.prompt_ids {
        // The prompt is given as ids: without a tokenizer the answer is ids too, and has no text.
        Some(_) if !args.sampling.has_stops() => setup.tokenizer().ok(),
        _ => Some(setup.tokenizer()?),
    };
    let eos = &setup.model.config.eos_tokens;
    let answer = tokenizer
        .map(|tokenizer| Detokenizer::new(tokenizer, stops, &request, eos, TextOptions::default()));
    let engine = setup.engine(engine)?;
    let mut record = Record::begin(&request.prompt);
    let handle = engine.submit(request)?;
    let mut output = if json { Output::silent() } else { Output::stdout() };
    let reason = answer::follow(handle, answer, |event, piece| {
        record.take(event);
        record.text.push_str(piece);
        // Breaking off drops the handle, which cancels the request.
        let open = output.write(piece)?;
        Ok(if open { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    record.finish_reason = reason.name();
    output.finish()?;
    match json {
        true => Output::stdout().line(&record.json(args.logprobs).to_string()),
        false => Ok(()),
    }
}

/// Returns the prompt's token ids.
fn prompt(setup: &Setup, args: &GenerateArgs) -> Result<Vec<u32>, Error> {
    if let Some(ids) = &args.prompt_ids {
        return Ok(ids.clone());
    }
    let text = match args.prompt.as_deref() {
        Some("-") => stdin()?,
        Some(text) => text.to_owned(),
        None => return Err(Error::usage("give --prompt TEXT, --prompt - (stdin) or --prompt-ids")),
    };
    if args.raw { setup.raw_prompt(&text) } else { setup.user_prompt(&text) }
}

/// Reads stdin to its end as UTF-8.
fn stdin() -> Result<String, Error> {
    let bytes = take_up_to(std::io::stdin(), MAX_PROMPT_MIB)
        .map_err(|error| Error::failed(format!("cannot read the prompt from stdin: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::usage(format!(
            "the prompt on stdin is not UTF-8 from byte {at} on: convert it first"
        ))
    })
}
