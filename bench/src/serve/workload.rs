//! The requests of `bench serve`: the same for every policy and load.

use trail_runtime::engine::{Request, SamplingParams};
use trail_runtime::model::ModelConfig;
use trail_scheduler::noise::Confusion;
use trail_scheduler::rng::{Rng, mix};
use trail_scheduler::workload::Lengths;
use trail_setup::drive::Job;

use super::ServeArgs;

/// Requests with random prompts, forced lengths, and predictions to replay, all arriving at once.
pub fn jobs(args: &ServeArgs, config: &ModelConfig, confusion: &Confusion) -> Vec<Job> {
    let count = args.burst.unwrap_or(args.requests);
    (0..u64::from(count))
        .map(|index| {
            let mut rng = Rng::new(mix(args.seed as u64) ^ index);
            Job { request: request(args, config, confusion, &mut rng), arrival_s: 0.0 }
        })
        .collect()
}

fn request(
    args: &ServeArgs,
    config: &ModelConfig,
    confusion: &Confusion,
    rng: &mut Rng,
) -> Request {
    let (mean, cap) = (args.prompt_tokens, args.max_tokens);
    let prompt_tokens = Lengths::Uniform { min: mean / 2, max: mean + mean / 2 }.tokens(rng);
    let prompt = (0..prompt_tokens).map(|_| rng.below(config.vocab_size as u64) as u32).collect();
    let length = Lengths::AlpacaLike { cap }.tokens(rng);
    Request {
        // Greedy, as in TRAIL's evaluation.
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ignore_eos: true,
        forced_length: Some(length),
        true_length: Some(length),
        initial_prediction: Some(confusion.length(length, rng)),
        predictions: Some(confusion.refined(length, rng).into()),
        ..Request::new(prompt, cap)
    }
}
