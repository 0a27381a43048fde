//! `trail-rt pull`: a model from the Hugging Face hub.

use clap::Args;
use serde_json::{Value, json};
use trail_cli::hub::{self, FetchedFile, HubReference, PulledModel};
use trail_cli::{Error, Output, notice};

/// The long help.
pub const ABOUT: &str = "\
Fetch a model from the Hugging Face hub into its cache

Without FILE: the safetensors weights of the repository with config.json, tokenizer.json and the
other files beside them, or its only .gguf file. A download that broke off is resumed; of large
files the SHA-256 is compared, of small ones the size. The path is printed on stdout; --model
hf:OWNER/NAME[:FILE] names the same.

Environment: HF_HOME or HF_HUB_CACHE (the cache), HF_TOKEN (private and gated models), HF_ENDPOINT
(a mirror), HTTPS_PROXY, NO_PROXY; --model also honours HF_HUB_OFFLINE=1.";

/// Options of `trail-rt pull`.
#[derive(Args, Debug)]
pub struct PullArgs {
    /// The repository, or one of its files
    // Not `model`: that is the name of a global option.
    #[arg(value_name = "OWNER/NAME[:FILE]")]
    repository: HubReference,
}

/// Fetches the model, and prints its path.
pub fn run(args: &PullArgs, json: bool) -> Result<(), Error> {
    let pulled = hub::pull(&args.repository, |file| notice(file))?;
    let text = match json {
        true => report(&args.repository, &pulled).to_string(),
        false => pulled.path.display().to_string(),
    };
    Output::stdout().line(&text)
}

fn report(model: &HubReference, pulled: &PulledModel) -> Value {
    let file = |file: &FetchedFile| json!({ "name": file.name, "bytes": file.bytes, "was_cached": file.was_cached });
    json!({
        "model": model.to_string(),
        "path": pulled.path,
        "commit": pulled.commit,
        "files": pulled.files.iter().map(file).collect::<Vec<_>>(),
    })
}
