//! Example 1: Embeds the runtime in a program: loads a model, submits a request, streams the
//! answer.
//!
//! `cargo run --release --example 01_embed -- "Tell me a story about a cat."`

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use trail_probe::Probe;
use trail_runtime::engine::{Engine, EngineConfig, Event, PolicyKind, Request};
use trail_runtime::model::Model;
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, TextStream, Tokenizer};

/// Answers the prompt given as an argument.
pub fn main() -> Result<(), Box<dyn Error>> {
    let prompt = std::env::args().nth(1);
    let prompt = prompt.unwrap_or_else(|| "Tell me a story about a cat.".into());
    run(&prompt, &mut std::io::stdout())
}

/// Streams the answer to `prompt`.
pub fn run(prompt: &str, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));

    // Configuration, weights and tokenizer.
    let model = Arc::new(Model::load(folder)?);
    let tokenizer = Arc::new(Tokenizer::load(folder, model.config.vocab_size)?);
    let turn = ChatMessage::new("user", prompt);
    let tokens = ChatTemplate::load(folder)?.encode(&tokenizer, &[turn], ChatOptions::default())?;

    // An engine that ranks requests by predicted remaining length.
    let config = EngineConfig {
        probe: Some(Probe::open(folder.join("probe.safetensors"))?),
        policy: PolicyKind::trail(0.8),
        ..EngineConfig::default()
    };
    let engine = Engine::new(model, config)?;

    // One request. Its events arrive in order; dropping the handle would cancel it.
    let mut text = TextStream::new(tokenizer);
    let mut first_prediction = None;
    let mut generated = 0;
    for event in engine.submit(Request::new(tokens, 200))? {
        match event {
            Event::Token { id, .. } => {
                generated += 1;
                write!(out, "{}", text.push(id))?;
                out.flush()?;
            }
            Event::Prediction { remaining, .. } => {
                first_prediction.get_or_insert(remaining);
            }
            Event::Finished { reason } => writeln!(out, "{} [{}]", text.flush(), reason.name())?,
            Event::PromptToken { .. } | Event::Alternative { .. } | Event::Preempted { .. } => {}
        }
    }
    let predicted = first_prediction.unwrap_or(0.0);
    writeln!(out, "{generated} tokens; {predicted:.0} were predicted")?;
    Ok(())
}
