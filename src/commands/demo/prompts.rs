//! The bundled prompts, one JSON object a line, as requests.

use std::path::Path;

use serde::Deserialize;
use trail_runtime::engine::{Request, SamplingParams};
use trail_setup::drive::Job;
use trail_setup::{Error, Setup};

use super::args::DemoArgs;

/// One prompt of the set. The file is shuffled so that every prefix is stratified over families.
#[derive(Clone, Debug, Deserialize)]
struct Prompt {
    /// The user's text.
    prompt: String,
    /// Random key of the answer.
    seed: u64,
}

/// The prompts that the options name as jobs that all arrive at once.
pub fn jobs(setup: &Setup, args: &DemoArgs) -> Result<Vec<Job>, Error> {
    let file = args.prompt_file.clone().unwrap_or_else(|| setup.folder.join("prompts.jsonl"));
    let mut prompts = read(&file)?;
    if args.prompts > prompts.len() {
        return Err(Error::usage(format!(
            "--prompts is {}, {} has {}: ask for fewer, or give another --prompt-file",
            args.prompts,
            file.display(),
            prompts.len()
        )));
    }
    if prompts.is_empty() {
        return Err(Error::usage(format!("{} has no prompts", file.display())));
    }
    if args.prompts > 0 {
        prompts.truncate(args.prompts);
    }
    prompts
        .iter()
        .map(|prompt| {
            let sampling = SamplingParams { seed: prompt.seed, ..SamplingParams::default() };
            let tokens = setup.user_prompt(&prompt.prompt)?;
            check_context(setup, tokens.len(), args.max_tokens)?;
            let request = Request { sampling, ..Request::new(tokens, args.max_tokens) };
            Ok(Job { request, arrival_s: 0.0 })
        })
        .collect()
}

/// Refuses an answer that would not fit into the model's context.
fn check_context(setup: &Setup, prompt_tokens: usize, max_tokens: u32) -> Result<(), Error> {
    let context = setup.model.config.max_context;
    if prompt_tokens + max_tokens as usize <= context {
        return Ok(());
    }
    Err(Error::usage(format!(
        "--max-tokens is {max_tokens}, a prompt has {prompt_tokens} tokens and the model's context \
         {context}: lower it"
    )))
}

/// Reads all prompts of a file.
fn read(path: &Path) -> Result<Vec<Prompt>, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::usage(format!(
            "cannot read the prompts {}: {error}; give a file with --prompt-file, one JSON object \
             a line",
            path.display()
        ))
    })?;
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| {
                Error::usage(format!(
                    "{} line {}: {error}; expected {{\"family\":..,\"prompt\":..,\"seed\":..}}",
                    path.display(),
                    number + 1
                ))
            })
        })
        .collect()
}
