//! The bundled prompts: one JSON object a line.

use std::path::Path;

use serde::Deserialize;
use trail_setup::Error;

/// One prompt of the set; the file is shuffled so that any first part of it is stratified.
#[derive(Clone, Debug, Deserialize)]
pub struct Prompt {
    /// What the user says.
    pub prompt: String,
    /// Key of the answer's randomness.
    pub seed: u64,
}

/// Reads all prompts of a file.
pub fn read(path: &Path) -> Result<Vec<Prompt>, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::usage(format!(
            "cannot read the prompts {}: {error}; give a file with --prompt-file, one JSON object a line",
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
