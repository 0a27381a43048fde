//! Example 3: Steps the engine by hand, on a simulated clock: the caller decides when a step runs
//! and what time it is, and a run repeats to the bit.
//!
//! `cargo run --release --example 03_step`

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use trail_probe::predictor::Hint;
use trail_runtime::engine::{
    Clock, EngineConfig, Event, Request, RequestHandle, StepClock, StepOutcome, SteppedEngine,
    load_step_cost,
};
use trail_runtime::model::Model;
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, Tokenizer};

/// Arrivals, nanoseconds, with the most tokens of each answer: a long one begins, and a short one
/// arrives meanwhile.
const PROMPTS: [(u64, &str, u32); 2] =
    [(0, "Tell me a story about a cat.", 100), (3_000_000, "Count from 3 to 9.", 20)];

/// Prints the run.
pub fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Answers two prompts, one at a time, and prints who runs.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let model = Arc::new(Model::load(folder)?);
    let tokenizer = Tokenizer::load(folder, model.config.vocab_size)?;
    let template = ChatTemplate::load(folder)?;
    let clock = Arc::new(StepClock::new(load_step_cost(&folder.join("step_cost.json"))?));
    let mut engine = SteppedEngine::new(
        model,
        EngineConfig {
            // The clients' own estimates, counted down.
            predictor: Some(Arc::new(Hint { otherwise: None })),
            policy: "trail-bert".parse()?,
            clock: Some(clock.clone()),
            max_running: Some(1),
            ..EngineConfig::default()
        },
    )?;

    let mut arrivals = PROMPTS.iter();
    let mut next = arrivals.next();
    let mut answers: Vec<(RequestHandle, usize)> = Vec::new();
    let mut steps = 0;
    loop {
        // Whatever has arrived by the clock.
        while let Some((at, prompt, max_tokens)) = next.filter(|(at, ..)| *at <= clock.now_ns()) {
            let turn = ChatMessage::new("user", *prompt);
            let tokens = template.encode(&tokenizer, &[turn], ChatOptions::default())?;
            let mut request = Request::new(tokens, *max_tokens);
            request.length_hint = Some(*max_tokens);
            request.ignore_eos = true;
            request.sampling.temperature = 0.0;
            answers.push((engine.submit(request)?, 0));
            writeln!(out, "{:>6.1} ms: {prompt}", *at as f64 / 1e6)?;
            next = arrivals.next();
        }
        match (engine.step()?, next) {
            (StepOutcome::Idle, None) => break,
            (StepOutcome::Idle, Some((at, ..))) => clock.advance_to(*at),
            (StepOutcome::Ran | StepOutcome::Transferring, _) => steps += 1,
        }
        for (answer, tokens) in &mut answers {
            while let Some(event) = answer.try_recv() {
                let (id, at) = (answer.id(), clock.now_ns() as f64 / 1e6);
                match event {
                    Event::Token { .. } => *tokens += 1,
                    Event::Preempted { .. } => writeln!(out, "{at:>6.1} ms: {id} is paused")?,
                    Event::Finished { .. } => writeln!(out, "{at:>6.1} ms: {id}: {tokens} tokens")?,
                    _ => {}
                }
            }
        }
    }
    writeln!(out, "{steps} steps")?;
    Ok(())
}
