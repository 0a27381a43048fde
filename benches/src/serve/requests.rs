//! The requests of `bench serve`: the same for every policy and load.

use trail_cli::drive::TimedRequest;
use trail_runtime::engine::{Request, SamplingParams};
use trail_runtime::model::ModelConfig;
use trail_scheduler::rng::{Rng, mix};
use trail_simulator::arrivals::Lengths;
use trail_simulator::{Job as Predicted, Refined};

use super::ServeArgs;

/// Requests with random prompts, forced lengths, and predictions to replay, all arriving at once;
/// and the mean absolute error of the latter, tokens.
pub fn jobs(args: &ServeArgs, config: &ModelConfig) -> (Vec<TimedRequest>, Option<f64>) {
    let conversations = args.burst.unwrap_or(args.requests);
    let count = conversations * args.turns;
    let prefix = prefix(args, config);
    let drawn = |id: u64| drawn(args, id, &mut Rng::new(mix(args.seed as u64) ^ id));
    let mut predicted: Vec<Predicted> = (0..u64::from(count)).map(drawn).collect();
    args.noise.predict(&mut predicted, mix(args.seed as u64));
    let (mut jobs, mut error, mut tokens) = (Vec::new(), 0.0, 0);
    for of in &predicted {
        let mut remaining = Vec::new();
        of.refined.fill(of.output_tokens, &mut remaining);
        for (generated, estimate) in (0..).zip(&remaining) {
            error += f64::from(estimate - (of.output_tokens - generated) as f32).abs();
        }
        tokens += remaining.len();
        let mut rng = Rng::new(mix(args.seed as u64) ^ mix(of.id));
        let follows = (of.id as usize).checked_sub(conversations as usize);
        let prefix = if follows.is_none() { &prefix[..] } else { &[] };
        let request = request(config, of, remaining, prefix, &mut rng);
        jobs.push(TimedRequest { follows, ..TimedRequest::first(request, 0.0) });
    }
    (jobs, (tokens > 0).then(|| error / tokens as f64))
}

/// The sizes of a request.
fn drawn(args: &ServeArgs, id: u64, rng: &mut Rng) -> Predicted {
    let (mean, cap) = (args.prompt_tokens, args.max_tokens);
    Predicted {
        id,
        arrival_ns: 0,
        prompt_tokens: Lengths::Uniform { min: mean / 2, max: mean + mean / 2 }.tokens(rng),
        output_tokens: Lengths::AlpacaLike { cap }.tokens(rng),
        max_tokens: cap,
        priority: 0,
        r: None,
        refined: Refined::None,
        block_hashes: [].into(),
    }
}

/// The tokens with which every conversation begins.
fn prefix(args: &ServeArgs, config: &ModelConfig) -> Vec<u32> {
    let mut rng = Rng::new(mix(args.seed as u64));
    (0..args.shared_prefix).map(|_| rng.below(config.vocab_size as u64) as u32).collect()
}

fn request(
    config: &ModelConfig,
    of: &Predicted,
    remaining: Vec<f32>,
    prefix: &[u32],
    rng: &mut Rng,
) -> Request {
    let own = (0..of.prompt_tokens).map(|_| rng.below(config.vocab_size as u64) as u32);
    let prompt = prefix.iter().copied().chain(own).collect();
    Request {
        // Greedy, as in TRAIL's evaluation.
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ignore_eos: true,
        forced_length: Some(of.output_tokens),
        true_length: Some(of.output_tokens),
        initial_prediction: of.r,
        predictions: Some(remaining.into()),
        ..Request::new(prompt, of.max_tokens)
    }
}
