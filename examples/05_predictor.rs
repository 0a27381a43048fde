//! Example 5: A length predictor of one's own: it learns from finished answers how long those to
//! prompts with the same first words are, and the engine runs the shortest predicted one first.
//!
//! `cargo run --release --example 05_predictor`

use std::collections::HashMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trail_probe::{LengthPredictor, Prediction, Prompt};
use trail_runtime::engine::{Engine, EngineConfig, Event, PolicyKind, Request};
use trail_runtime::model::Model;
use trail_runtime::text::Tokenizer;

/// Tokens that tell prompts apart.
const OPENING: usize = 3;

/// The mean length of the answers to prompts that begin alike.
#[derive(Default)]
struct ByOpening {
    /// Answers and their tokens, by the prompt's first tokens.
    seen: Mutex<HashMap<Vec<u32>, (u32, u32)>>,
}

impl ByOpening {
    fn opening(prompt: &[u32]) -> Vec<u32> {
        prompt.iter().copied().take(OPENING).collect()
    }

    fn learn(&self, prompt: &[u32], tokens: u32) {
        let mut seen = self.seen.lock().expect("no panic");
        let (answers, total) = seen.entry(ByOpening::opening(prompt)).or_default();
        (*answers, *total) = (*answers + 1, *total + tokens);
    }
}

impl LengthPredictor for ByOpening {
    fn predict(&self, prompt: &Prompt<'_>) -> Option<Prediction> {
        let seen = self.seen.lock().expect("no panic");
        let (answers, total) = seen.get(&ByOpening::opening(prompt.ids))?;
        Some(Prediction::Tokens(*total as f32 / *answers as f32))
    }
}

/// Prints the predictions.
pub fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Answers prompts of two kinds, and prints the length that was predicted for each.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let model = Arc::new(Model::load(folder)?);
    let tokenizer = Tokenizer::load(folder, model.config.vocab_size)?;
    let predictor = Arc::new(ByOpening::default());
    let config = EngineConfig {
        predictor: Some(predictor.clone()),
        policy: PolicyKind::Sjf(Default::default()),
        ..EngineConfig::default()
    };
    let engine = Engine::new(model, config)?;

    for (prompt, limit) in [("List: a b c", 8), ("Once upon", 40), ("List: d", 8), ("Once upon", 9)]
    {
        let tokens = tokenizer.encode(prompt, true)?;
        let mut request = Request::new(tokens.clone(), limit);
        request.ignore_eos = true;
        let answer = engine.submit(request)?;
        let predicted = answer.initial_prediction();
        let generated = answer.filter(|event| matches!(event, Event::Token { .. })).count();
        predictor.learn(&tokens, generated as u32);
        match predicted {
            Some(tokens) => writeln!(out, "{prompt:?}: {tokens:.0} predicted, {generated} tokens")?,
            None => writeln!(out, "{prompt:?}: not seen before, {generated} tokens")?,
        }
    }
    Ok(())
}
