//! Reference of the device's sampler: the CPU sampler, which has its own f64 reference in
//! its unit tests.

use trail_runtime::backend::{Allowed, Sampled};
use trail_runtime::engine::SamplingParams;
use trail_runtime::sampling::{History, Sampler};

/// The token that the CPU sampler samples.
pub(crate) fn sample(
    logits: &[f32],
    params: &SamplingParams,
    prompt: &[u32],
    generated: &[u32],
    position: u32,
    allowed: &Allowed,
) -> Sampled {
    let history = History { prompt, generated };
    let mut sampler = Sampler::new(logits.len());
    sampler.sample_allowed(&mut logits.to_vec(), params, history, position, allowed)
}

/// One request's counts.
pub(crate) fn token_counts(vocab: usize, prompt: &[u32], generated: &[u32]) -> Vec<u32> {
    let mut counts = vec![0u32; vocab];
    for &token in prompt.iter().filter(|token| (**token as usize) < vocab) {
        counts[token as usize] |= 1 << 31;
    }
    for &token in generated.iter().filter(|token| (**token as usize) < vocab) {
        counts[token as usize] += 1;
    }
    counts
}
