//! Proof of the CUDA backend, driven through the engine's interface: the CPU backend's answers, by
//! graphs and without, whatever the other requests.

mod cpu_reference;
mod drafts;
mod fallbacks;
mod faults;
mod hopper;
mod layers;
mod megakernel;
mod models;
mod play;
mod receivers;
mod sampling;
mod split;
mod taps;
mod timing;

use cpu_reference::{best, cpu, run_cpu};
use play::{BLOCKS, CONTEXT, Played, REQUESTS, ROWS, Request, SEGMENTS, Schedule, play};
use std::sync::Arc;
use trail_runtime::backend::{RowSink, SampledToken, SamplingParams};
use trail_runtime::cuda::queue::Queue;
use trail_runtime::cuda::step_metadata::StepMetadata;
use trail_runtime::cuda::{CudaBackend, CudaOptions, DEVICE_TIMEOUT, OrderChoice, TapMode};
use trail_runtime::model::Model;
use trail_runtime::reference::Reference;
use trail_test_support::cuda::Chance;
use trail_test_support::tolerance::Tolerance;
use trail_test_support::{cuda, tolerance};

fn options() -> CudaOptions {
    CudaOptions {
        ordinal: 0,
        max_rows: ROWS,
        max_segments: SEGMENTS,
        max_requests: REQUESTS,
        max_context: CONTEXT,
        kv_blocks: Some(BLOCKS),
        host_kv_bytes: 0,
        graphs: true,
        order: OrderChoice::Fixed,
        megakernel: false,
        tap_layer: None,
        tap: TapMode::Off,
        probe: None,
        probe_threads: 1,
        shares_blocks: true,
        max_drafts: 8,
        device_timeout: DEVICE_TIMEOUT,
        checksums: false,
    }
}

/// With a tap.
fn taps_options() -> CudaOptions {
    CudaOptions { tap_layer: Some(0), tap: TapMode::Cpu, ..options() }
}

fn backend(model: &Arc<Model>, options: &CudaOptions) -> CudaBackend {
    CudaBackend::new(model, options, None, &mut |_| ()).unwrap()
}

fn backend_with(
    model: &Arc<Model>,
    options: &CudaOptions,
    receiver: Arc<dyn RowSink>,
) -> CudaBackend {
    CudaBackend::new(model, options, Some(receiver), &mut |_| ()).unwrap()
}

const AHEAD: Schedule = Schedule { ahead: true, taps: false, seed: 5, rows: ROWS };

/// Prompts of all kinds of lengths; more requests than segments, indices that are used twice,
/// pauses, chunks.
fn requests(vocab: usize) -> Vec<Request> {
    let mut chance = Chance(11);
    let mut request = |length: usize, answer: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(vocab) as u32).collect();
        Request::greedy(prompt, answer, index)
    };
    vec![
        Request { surprises: true, ..request(33, 6, 0) },
        Request { pause_every: 2, ..request(5, 9, 1) },
        Request { chunk: 16, surprises: true, ..request(17, 5, 2) },
        Request { from: 3, ..request(1, 12, 3) },
        Request { chunk: 7, ..request(20, 4, 4) },
        request(2, 7, 5),
        Request { from: 2, pause_every: 3, ..request(16, 8, 6) },
        // With the indices of others, when those have ended.
        Request { from: 4, ..request(9, 5, 2) },
        Request { from: 6, ..request(40, 3, 0) },
    ]
}

/// The sequence that a request ended in, but for its last token, which was never fed.
fn fed(request: &Request, answer: &[SampledToken]) -> Vec<u32> {
    let answer = &answer[..answer.len() - 1];
    request.prompt.iter().copied().chain(answer.iter().map(|sampled| sampled.id)).collect()
}

/// Equal to the bit.
fn same(a: &[Vec<SampledToken>], b: &[Vec<SampledToken>]) -> bool {
    let bits = |sampled: &SampledToken| {
        let top = &sampled.top[..usize::from(sampled.num_top)];
        let top: Vec<_> = top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect();
        (sampled.id, sampled.logprob.to_bits(), top)
    };
    let all = |answers: &[Vec<SampledToken>]| -> Vec<Vec<_>> {
        answers.iter().map(|answer| answer.iter().map(bits).collect()).collect()
    };
    all(a) == all(b)
}

/// Allowed difference of a logit, from passes over these sequences.
fn tolerance(model: &Model, sequences: &[Vec<u32>]) -> Tolerance {
    let reference = Reference::new(model);
    let tokens: Vec<&[u32]> = sequences.iter().map(|sequence| &sequence[..]).collect();
    let traces: Vec<_> = tokens.iter().map(|tokens| reference.trace(tokens)).collect();
    Tolerance::new(model, &tokens, &traces)
}

/// Every token is the CPU backend's, given the ones before, but for close calls; the figures are
/// the CPU's within the tolerance.
fn check(model: &Arc<Model>, requests: &[Request], answers: &[Vec<SampledToken>]) {
    let sequences: Vec<_> =
        requests.iter().zip(answers).map(|(request, answer)| fed(request, answer)).collect();
    let tolerance = tolerance(model, &sequences).logit;
    let mut cpu = cpu(model);
    let (mut compared, mut total) = (0, 0);
    for ((request, answer), sequence) in requests.iter().zip(answers).zip(&sequences) {
        assert_eq!(answer.len(), request.answer);
        total += answer.len();
        let expected = run_cpu(&mut cpu, sequence, 0);
        for (index, sampled) in answer.iter().enumerate() {
            let logits = &expected.logits[request.prompt.len() - 1 + index];
            let (token, gap) = best(logits);
            let short = f64::from(logits[token as usize] - logits[sampled.id as usize]);
            assert!(
                short <= 2.0 * tolerance,
                "token {index} of request {}: not {token}",
                request.request_index
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
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

fn plays(model: Model) {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(model);
    let requests = requests(model.config.vocab_size);
    let answers = answers(&model, &options(), &requests, AHEAD);
    check(&model, &requests, &answers);
    // Kernel by kernel: the same bits.
    let eager = CudaOptions { graphs: false, ..options() };
    assert!(same(&answers, &self::answers(&model, &eager, &requests, AHEAD)), "graphs");
}

/// The answers of a new backend.
fn answers(
    model: &Arc<Model>,
    options: &CudaOptions,
    requests: &[Request],
    schedule: Schedule,
) -> Vec<Vec<SampledToken>> {
    let mut backend = backend(model, options);
    let Played { answers, .. } = play(&mut backend, requests, schedule, &mut |_, _| ()).unwrap();
    answers
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

#[test]
fn cuda_biases_of_heads() {
    plays(models::biased());
}

#[test]
fn cuda_norms_of_heads() {
    plays(models::normed());
}

/// Tokens that the device keeps are the ones the host would have given: the same steps, each row
/// known.
#[test]
fn cuda_tokens_stay_on_the_device() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    // No request pauses, ends or comes later, so that both ways make the same steps.
    let mut chance = Chance(12);
    let mut request = |length: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(256) as u32).collect();
        let sampling = SamplingParams { seed: u64::from(index), ..SamplingParams::default() };
        Request { sampling, ..Request::greedy(prompt, 6, index) }
    };
    let requests: Vec<Request> = (0..4).map(|index| request(3 + index as usize, index)).collect();
    let ahead = answers(&model, &options(), &requests, AHEAD);
    let behind = answers(&model, &options(), &requests, Schedule { ahead: false, ..AHEAD });
    assert!(same(&ahead, &behind));
    // Another order of segments is another order of rows in no kernel's eyes.
    assert!(same(&ahead, &answers(&model, &options(), &requests, Schedule { seed: 6, ..AHEAD })));
}

/// The bundled model, with its own vocabulary and depth.
#[test]
fn cuda_the_demo_model() {
    let _session = trail_cuda_emulator::session();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let model = Arc::new(Model::load(&folder).unwrap());
    let mut chance = Chance(13);
    let mut request = |length: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(1024) as u32).collect();
        Request::greedy(prompt, 4, index)
    };
    let requests = [request(20, 0), request(6, 1)];
    let eager = CudaOptions { graphs: false, ..options() };
    check(&model, &requests, &answers(&model, &eager, &requests, AHEAD));
}

/// Lists of differences that do not fit are carried over in pieces; the words on the device are
/// those of the host.
#[test]
fn cuda_metadata_is_the_same_however_short_their_lists() {
    let bench = cuda::Bench::open();
    // SAFETY: each metadata outlives the wait for the copies and launches that it puts on the
    // queue.
    let queue = unsafe { Queue::new(bench.device.clone(), bench.stream.clone()) };
    for (words, capacity) in [(1, 1), (100, 7), (100, 100), (5000, 64)] {
        let mut metadata = StepMetadata::new(&bench.device, words, capacity).unwrap();
        let mut chance = Chance(14);
        let mut wanted = vec![0; words];
        for step in 1..=5u64 {
            metadata.begin(step);
            let changed = chance.below(words + 1);
            for index in chance.permutation(words).into_iter().take(changed) {
                // Some are what they were.
                wanted[index] =
                    if chance.below(3) == 0 { wanted[index] } else { chance.next_u64() as u32 };
                metadata.set(index, wanted[index]);
            }
            metadata.spill(&queue).unwrap();
            assert!(metadata.pending() <= capacity);
            metadata.apply(&queue, (step % 2) as usize).unwrap();
            let mut found = vec![0u32; words];
            bench.stream.synchronize().unwrap();
            // SAFETY: the metadata has that many words, and the stream has ended.
            unsafe {
                cudarc::driver::result::memcpy_dtoh_sync(&mut found, metadata.at(0).address())
            }
            .unwrap();
            assert!(found == wanted, "{words} words, {capacity} pairs, step {step}");
        }
    }
}

/// Rows of padding touch nothing: the pool holds the keys and values of what was fed, in the blocks
/// it was given, and zeros.
#[test]
fn cuda_padding_touches_nothing() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::windowed());
    let mut chance = Chance(15);
    let mut request = |length: usize, answer: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(261) as u32).collect();
        Request::greedy(prompt, answer, index)
    };
    // Three rows are padded to four, five to six; blocks are given once.
    let requests: Vec<Request> = [(3, 9), (20, 4), (7, 9), (1, 3), (33, 5)]
        .into_iter()
        .zip(0..)
        .map(|((length, answer), index)| request(length, answer, index))
        .collect();
    let mut backend = backend(&model, &options());
    let answers = play(&mut backend, &requests, AHEAD, &mut |_, _| ()).unwrap().answers;
    let kv = backend.kv();
    let mut pool = vec![0u16; kv.blocks() as usize * kv.block_bytes() / 2];
    // SAFETY: the pool is that large, and all steps have ended.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut pool, kv.device_ptr().address()) }
        .unwrap();
    let fed: usize =
        requests.iter().zip(&answers).map(|(request, answer)| fed(request, answer).len()).sum();
    let config = &model.config;
    let written = pool.iter().filter(|&&bits| bits != 0).count();
    assert_eq!(written, fed * config.num_layers * 2 * config.kv_size());
}
