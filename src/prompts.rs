//! Files of prompts: one JSON object a line, with a `prompt` and perhaps a `seed`.

use std::path::Path;

use serde::Deserialize;
use trail_cli::{Error, Setup, read_json_lines};
use trail_platform::quote::quote;
use trail_platform::rng::mix;
use trail_runtime::engine::{Request, SamplingParams};

/// One prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct Prompt {
    /// The user's text.
    pub prompt: String,
    /// Random key of the answer; follows from the line if there is none.
    pub seed: Option<u64>,
}

impl Prompt {
    /// Random key of the answer of the prompt at `index`.
    pub fn seed(&self, index: usize) -> u64 {
        self.seed.unwrap_or_else(|| mix(index as u64))
    }

    /// The request for its answer, through the chat template, at temperature 1.
    pub fn request(&self, setup: &Setup, index: usize, max_tokens: u32) -> Result<Request, Error> {
        let sampling = SamplingParams { seed: self.seed(index), ..SamplingParams::default() };
        let tokens = setup.user_prompt(&self.prompt)?;
        Ok(Request { sampling, ..Request::new(tokens, max_tokens) })
    }
}

/// Reads all prompts of the file at `path`, which `option` names.
pub fn read(path: &Path, option: &str) -> Result<Vec<Prompt>, Error> {
    let text = read_json_lines(path).map_err(|error| {
        Error::usage(format!(
            "cannot read the prompts {}: {error}; give a file with {option}, one JSON object a line",
            path.display()
        ))
    })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompt = |(number, line)| {
        serde_json::from_str(line).map_err(|error| {
            Error::usage(format!(
                "{} line {}: {}; expected {{\"prompt\":..}}, with a \"seed\" if it has one",
                path.display(),
                number + 1,
                quote(&serde_json::Error::to_string(&error))
            ))
        })
    };
    let prompts: Vec<Prompt> = lines.map(prompt).collect::<Result<_, _>>()?;
    match prompts.is_empty() {
        true => Err(Error::usage(format!("{} has no prompts", path.display()))),
        false => Ok(prompts),
    }
}
