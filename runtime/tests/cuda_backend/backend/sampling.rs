//! Tokens that are drawn, and penalties.

use super::cpu_reference::{cpu, run_cpu};
use super::{AHEAD, Request, answers, fed, models, options, requests, same};
use std::sync::Arc;
use trail_runtime::cuda::CudaOptions;
use trail_runtime::engine::SamplingParams;
use trail_runtime::sampling::{History, Sampler};

/// Penalties, truncation and seeds: the CPU sampler's tokens from the CPU's logits, but where a
/// draw falls near the edge of a token.
#[test]
fn cuda_sampling_is_the_cpus() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let mut requests = requests(model.config.vocab_size);
    for (index, request) in requests.iter_mut().enumerate() {
        let penalised = index % 3 != 0;
        request.sampling = SamplingParams {
            logit_bias: Vec::new(),
            temperature: [0.9, 1.3, 0.0][index % 3],
            top_p: [1.0, 0.8, 1.0][index % 3],
            top_k: [0, 40, 0][index % 3],
            repetition_penalty: if penalised { 1.4 } else { 1.0 },
            presence_penalty: if penalised { 0.2 } else { 0.0 },
            // A negative one repeats tokens, so that a wrong count changes the answer.
            frequency_penalty: [0.0, -1.5, 0.3][index % 3],
            seed: 77 + index as u64,
            top_logprobs: 3,
            prompt_logprobs: None,
            min_p: 0.0,
        };
    }
    let answers = answers(&model, &options(), &requests, AHEAD);
    let eager = CudaOptions { graphs: false, ..options() };
    assert!(same(&answers, &super::answers(&model, &eager, &requests, AHEAD)), "graphs");
    let (mut cpu, mut sampler) = (cpu(&model), Sampler::new(model.config.vocab_size));
    let (mut equal, mut total) = (0, 0);
    for (request, answer) in requests.iter().zip(&answers) {
        let sequence = fed(request, answer);
        let mut expected = run_cpu(&mut cpu, &sequence, 0);
        for (index, sampled) in answer.iter().enumerate() {
            let position = request.prompt.len() + index;
            let history = History {
                prompt: &request.prompt,
                generated: &sequence[request.prompt.len()..position],
            };
            let logits = &mut expected.logits[position - 1];
            let wanted = sampler.sample(logits, &request.sampling, history, position as u32);
            let wanted = wanted.expect("finite logits");
            assert_eq!(sampled.num_top, 3);
            equal += usize::from(sampled.id == wanted.id);
            total += 1;
        }
    }
    println!("{equal} of {total} tokens are the CPU's");
    assert!(100 * equal >= 93 * total, "{equal} of {total} tokens are the CPU's");
}

/// One batch slot, so that the feed of token counts holds one context and a token: an odd number of
/// words before the next step's jobs.
#[test]
fn cuda_penalties_of_one_slot_in_either_parity() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let alone = CudaOptions { max_segments: 1, ..options() };
    let mut request = requests(model.config.vocab_size).swap_remove(5);
    request.sampling.presence_penalty = 0.2;
    // It gets its slot in the first step, then in the second.
    for from in [0, 1] {
        let request = Request { from, ..request.clone() };
        let wanted = request.answer;
        let answers = answers(&model, &alone, &[request], AHEAD);
        assert_eq!(answers[0].len(), wanted);
    }
}
