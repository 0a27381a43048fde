//! The prompts of the demonstration as requests.

use trail_cli::drive::TimedRequest;
use trail_cli::{Error, Setup};

use super::args::DemoArgs;
use crate::prompts;

/// The prompts that the options name as jobs that all arrive at once. The bundled file is shuffled
/// so that every prefix is stratified over families.
pub fn jobs(setup: &Setup, args: &DemoArgs) -> Result<Vec<TimedRequest>, Error> {
    let file = args.prompt_file.clone().unwrap_or_else(|| setup.folder.join("prompts.jsonl"));
    let mut prompts = prompts::read(&file, "--prompt-file")?;
    if args.prompts > prompts.len() {
        return Err(Error::usage(format!(
            "--prompts is {}, {} has {}: ask for fewer, or give another --prompt-file",
            args.prompts,
            file.display(),
            prompts.len()
        )));
    }
    if args.prompts > 0 {
        prompts.truncate(args.prompts);
    }
    let job = |(index, prompt): (usize, &prompts::Prompt)| {
        let request = prompt.request(setup, index, args.max_tokens)?;
        check_context(setup, request.prompt.len(), args.max_tokens)?;
        Ok(TimedRequest::first(request, 0.0))
    };
    prompts.iter().enumerate().map(job).collect()
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
