//! Sampling does not allocate, whatever the parameters.

use trail_counting_allocator::of_thread;
use trail_runtime::engine::SamplingParams;
use trail_runtime::sampling::{History, Sampler};

#[test]
fn sample_allocates_nothing() {
    let _alone = super::alone();
    let vocab_size = 5000;
    let mut logits: Vec<f32> =
        (0..vocab_size).map(|id| ((id * 7919) % 4999) as f32 * 0.003).collect();
    let seen: Vec<u32> = (0..6000).collect();
    let history = History { prompt: &seen, generated: &seen };
    let plain = SamplingParams::default();
    let all = [
        plain.clone(),
        SamplingParams { temperature: 0.0, ..plain.clone() },
        SamplingParams { temperature: 0.7, top_logprobs: 20, ..plain.clone() },
        SamplingParams { top_k: 50, ..plain.clone() },
        SamplingParams { top_k: 4999, ..plain.clone() },
        SamplingParams { top_p: 0.999, ..plain.clone() },
        SamplingParams { min_p: 0.1, top_k: 40, top_p: 0.9, ..plain.clone() },
        SamplingParams {
            repetition_penalty: 1.2,
            presence_penalty: 0.5,
            frequency_penalty: 0.5,
            ..plain
        },
    ];
    let mut sampler = Sampler::new(vocab_size);
    for params in &all {
        let before = of_thread();
        for position in 0..10 {
            sampler.sample(&mut logits, params, history, position).unwrap();
        }
        assert_eq!(of_thread() - before, 0, "{params:?}");
    }
    let before = of_thread();
    let scored = sampler.score(&logits, 4999, 20).unwrap();
    assert_eq!((usize::from(scored.token.num_top), of_thread() - before), (20, 0), "a score");
    logits.reverse();
    logits[17] = f32::NAN;
    let before = of_thread();
    let refused = sampler.sample(&mut logits, &all[3], history, 0);
    assert_eq!((refused.is_err(), of_thread() - before), (true, 0), "a NaN");
}
