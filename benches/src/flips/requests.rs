//! The requests of `bench flips`.

use trail_cli::{Error, Setup};
use trail_runtime::engine::{Request, SamplingParams};
use trail_scheduler::rng::{Rng, mix};

use super::FlipsArgs;

/// Text of all prompts.
const TEXT: &str = concat!(
    include_str!("../../../README.md"),
    include_str!("../../../ARCHITECTURE.md"),
    include_str!("../../../docs/serving.md")
);

/// Tokens with which all prompts begin.
const SHARED: usize = 40;
/// Longest passage of the text in a prompt, tokens.
const PASSAGE: u64 = 60;
/// Passages of a long prompt, as far as the context has room.
const LONG: usize = 12;

/// Chats (greedy), copies of a passage (greedy), sampled answers, and sampled ones to long prompts,
/// in turn. All begin alike, so that the prefix cache has hits.
pub(super) fn requests(args: &FlipsArgs, setup: &Setup) -> Result<Vec<Request>, Error> {
    let text = setup.raw_prompt(TEXT)?;
    let room = setup.model.config.max_context.saturating_sub(args.tokens as usize);
    let adapters = args.adapters.load(&setup.model.config)?;
    let mut rng = Rng::new(mix(args.seed));
    let request = |at: u32| {
        let mut passage = |longest: u64| {
            let length = 8 + rng.below(longest - 8) as usize;
            let first = rng.below((text.len() - length) as u64) as usize;
            &text[first..first + length]
        };
        let mut prompt = text[..SHARED].to_vec();
        match at % 4 {
            1 => {
                let copied = passage(PASSAGE);
                prompt.extend([copied, copied, &copied[..copied.len() / 2]].concat());
            }
            3 => (0..LONG).for_each(|_| prompt.extend(passage(PASSAGE))),
            _ => prompt.extend(passage(PASSAGE)),
        }
        prompt.truncate(room);
        let mut sampling = SamplingParams { seed: u64::from(at), ..SamplingParams::default() };
        match at % 4 {
            0 | 1 => sampling.temperature = 0.0,
            2 => (sampling.temperature, sampling.top_p) = (0.8, 0.95),
            _ => (sampling.temperature, sampling.repetition_penalty) = (0.7, 1.1),
        }
        // Policies that rank by predictions get the true length.
        let true_length = Some(args.tokens);
        // Each kind of request with each adapter, and without one.
        let adapter = (at / 4) as usize % (adapters.len() + 1);
        let adapter = adapter.checked_sub(1).map(|at| adapters[at].clone());
        let request = Request::new(prompt, args.tokens);
        Request { sampling, ignore_eos: true, true_length, adapter, ..request }
    };
    Ok((0..args.requests).map(request).collect())
}
