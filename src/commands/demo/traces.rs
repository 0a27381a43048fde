//! The requests of a run with their recorded predictions, as a trace file.

use trail_cli::drive::{RequestOutcome, TimedRequest};
use trail_cli::{Error, OutputFile, Setup};
use trail_probe::Prompt;
use trail_simulator::{BlockInterner, Trace};

/// Writes `jobs` with their arrival times, and the `outcomes` of the recording run.
pub fn write(
    file: &OutputFile,
    setup: &Setup,
    jobs: &[TimedRequest],
    outcomes: &[RequestOutcome],
) -> Result<(), Error> {
    let predictor = setup.predictor()?;
    let (mut text, mut blocks) = (String::new(), BlockInterner::default());
    for (index, (job, outcome)) in jobs.iter().zip(outcomes).enumerate() {
        let max = job.request.max_tokens as f32;
        let prompt = Prompt::new(&job.request.prompt);
        let predicted = predictor.as_ref().and_then(|of| of.predict(&prompt)).map(|of| of.mean());
        let remaining: Vec<f32> = outcome.predictions.iter().map(|&(_, tokens)| tokens).collect();
        let trace = Trace {
            id: index as u64,
            arrival_s: job.arrival_s,
            prompt_tokens: job.request.prompt.len() as u32,
            output_tokens: outcome.tokens.len() as u32,
            // As the engine submits it.
            r: predicted.map(|tokens| tokens.clamp(1.0, max)),
            // By the wall clock some predictions come too late to be recorded one by one.
            remaining: Some(remaining).filter(|all| all.len() == outcome.tokens.len()),
            block_hashes: Some(blocks.hashes(&job.request.prompt)),
        };
        text += &trace.line();
        text += "\n";
    }
    file.write(&text)
}
