//! Proof of the CUDA backend, driven through the engine's interface: the CPU backend's answers, by graphs and without, whatever the company.

#[path = "../support/cuda.rs"]
mod cuda;
mod faults;
mod models;
mod play;
mod receivers;
mod taps;
#[path = "../cuda_forward/tolerance.rs"]
mod tolerance;
mod twins;

use cuda::Chance;
use play::{BLOCKS, CONTEXT, How, ROWS, Request, SEGMENTS, SLOTS, play};
use std::sync::Arc;
use tolerance::Tolerance;
use trail_runtime::cuda::{CudaBackend, CudaOptions, TapMode};
use trail_runtime::engine::sampling::{History, Sampled, Sampler};
use trail_runtime::engine::{SamplingParams, TapReceiver};
use trail_runtime::model::Model;
use trail_runtime::reference::Reference;
use twins::{best, cpu, twin};

trail_cuda_emulator::on_emulator!();

fn options() -> CudaOptions {
    CudaOptions {
        ordinal: 0,
        max_rows: ROWS,
        max_segments: SEGMENTS,
        max_requests: SLOTS,
        max_context: CONTEXT,
        kv_blocks: Some(BLOCKS),
        host_kv_bytes: 0,
        graphs: true,
        tap_layer: None,
        tap: TapMode::Off,
        probe: None,
        probe_threads: 1,
        checksums: false,
    }
}

fn backend(model: &Arc<Model>, options: &CudaOptions) -> CudaBackend {
    CudaBackend::new(model.clone(), options.clone(), None, &mut |_| ()).unwrap()
}

fn backend_with(
    model: &Arc<Model>,
    options: &CudaOptions,
    receiver: Arc<dyn TapReceiver>,
) -> CudaBackend {
    CudaBackend::new(model.clone(), options.clone(), Some(receiver), &mut |_| ()).unwrap()
}

const AHEAD: How = How { ahead: true, taps: false, seed: 5 };

/// Prompts of all kinds of lengths; more requests than segments, slots that are used twice, pauses, chunks.
fn requests(vocab: usize) -> Vec<Request> {
    let mut chance = Chance(11);
    let mut request = |length: usize, answer: usize, slot: u32| {
        let prompt = (0..length).map(|_| chance.below(vocab) as u32).collect();
        Request::greedy(prompt, answer, slot)
    };
    vec![
        request(33, 6, 0),
        Request { pause_every: 2, ..request(5, 9, 1) },
        Request { chunk: 16, ..request(17, 5, 2) },
        Request { from: 3, ..request(1, 12, 3) },
        Request { chunk: 7, ..request(20, 4, 4) },
        request(2, 7, 5),
        Request { from: 2, pause_every: 3, ..request(16, 8, 6) },
        // In the slots of others, when those have ended.
        Request { from: 4, ..request(9, 5, 2) },
        Request { from: 6, ..request(40, 3, 0) },
    ]
}

/// The sequence that a request ended in, but for its last token, which was never fed.
fn fed(request: &Request, answer: &[Sampled]) -> Vec<u32> {
    let answer = &answer[..answer.len() - 1];
    request.prompt.iter().copied().chain(answer.iter().map(|sampled| sampled.id)).collect()
}

/// Equal to the bit.
fn same(a: &[Vec<Sampled>], b: &[Vec<Sampled>]) -> bool {
    let bits = |sampled: &Sampled| {
        let top = &sampled.top[..usize::from(sampled.num_top)];
        let top: Vec<_> = top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect();
        (sampled.id, sampled.logprob.to_bits(), top)
    };
    let all = |answers: &[Vec<Sampled>]| -> Vec<Vec<_>> {
        answers.iter().map(|answer| answer.iter().map(bits).collect()).collect()
    };
    all(a) == all(b)
}

/// What a logit may be off by, from passes over these sequences.
fn tolerance(model: &Model, sequences: &[Vec<u32>]) -> Tolerance {
    let reference = Reference::new(model);
    let tokens: Vec<&[u32]> = sequences.iter().map(|sequence| &sequence[..]).collect();
    let traces: Vec<_> = tokens.iter().map(|tokens| reference.trace(tokens)).collect();
    Tolerance::new(model, &tokens, &traces)
}

/// Every token is the CPU backend's, given the ones before, but for close calls; the figures are the CPU's within the tolerance.
fn check(model: &Arc<Model>, requests: &[Request], answers: &[Vec<Sampled>]) {
    let sequences: Vec<_> =
        requests.iter().zip(answers).map(|(request, answer)| fed(request, answer)).collect();
    let tolerance = tolerance(model, &sequences).logit;
    let mut cpu = cpu(model);
    let (mut compared, mut total) = (0, 0);
    for ((request, answer), sequence) in requests.iter().zip(answers).zip(&sequences) {
        assert_eq!(answer.len(), request.answer);
        total += answer.len();
        let twin = twin(&mut cpu, sequence, 0);
        for (index, sampled) in answer.iter().enumerate() {
            let logits = &twin.logits[request.prompt.len() - 1 + index];
            let (token, gap) = best(logits);
            let short = f64::from(logits[token as usize] - logits[sampled.id as usize]);
            assert!(
                short <= 2.0 * tolerance,
                "token {index} of slot {}: not {token}",
                request.slot
            );
            let off = f64::from(sampled.logprob) - logprob(logits, sampled.id);
            assert!(off.abs() <= 2.0 * tolerance, "a log-probability off by {off}");
            compared += usize::from(gap > 2.0 * tolerance);
        }
    }
    println!("{compared} of {total} tokens compared, tolerance {tolerance:.2e}");
    assert!(2 * compared >= total, "{compared} of {total} tokens were no close call");
}

/// The log-probability of a token.
fn logprob(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    f64::from(logits[token as usize] - most) - sum.ln()
}

fn plays(model: Model) {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(model);
    let requests = requests(model.config.vocab_size);
    let mut first = backend(&model, &options());
    let answers = play(&mut first, &requests, AHEAD, &mut |_, _| ()).unwrap();
    drop(first);
    check(&model, &requests, &answers);
    // Kernel by kernel, and with every token known to the host: the same bits.
    let mut eager = backend(&model, &CudaOptions { graphs: false, ..options() });
    let again = play(&mut eager, &requests, AHEAD, &mut |_, _| ()).unwrap();
    assert!(same(&answers, &again), "graphs give other bits");
    drop(eager);
    let mut slow = backend(&model, &options());
    let given = play(&mut slow, &requests, How { ahead: false, ..AHEAD }, &mut |_, _| ()).unwrap();
    for (answer, given) in answers.iter().zip(&given) {
        assert_eq!(ids(answer), ids(given), "tokens of the device's and of the host's");
    }
}

fn ids(answer: &[Sampled]) -> Vec<u32> {
    answer.iter().map(|sampled| sampled.id).collect()
}

#[test]
fn cuda_grouped_heads() {
    plays(models::grouped());
}

#[test]
fn cuda_windows_and_odd_sizes() {
    plays(models::windowed());
}

#[test]
fn cuda_stretched_rotation() {
    plays(models::stretched());
}
