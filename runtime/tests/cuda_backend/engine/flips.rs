//! One answer on the device: tokens and bits of log-probabilities are those of each request alone,
//! whatever the chip of an architecture, the other requests, chunks, memory, policy, prefix cache,
//! speculation and megakernel, and where the request moves to another engine.

use std::sync::Arc;

use trail_cuda_emulator::harness::Chip;
use trail_platform::covering;
use trail_runtime::engine::{
    CudaSettings, Engine, EngineConfig, Event, QueueConfig, Request, RequestHandle, SamplingParams,
    Speculate, Stats,
};
use trail_runtime::model::{Architecture, Dtype, Model, ModelConfig};
use trail_scheduler::{Preemption, SchedulerConfig};

use super::subject::{CUDA, LIMIT};

/// Names of the settings, and their numbers of levels.
const SETTINGS: [(&str, usize); 10] = [
    ("chip", 3),
    ("family", 3),
    ("running", 3),
    ("budget", 3),
    ("blocks", 2),
    ("policy", 3),
    ("preemption", 2),
    ("reuse", 4),
    ("megakernel", 2),
    ("moved", 3),
];
const CHIPS: [Chip; 3] = [Chip::A100, Chip::H100, Chip::L4];

/// Tokens that another engine has generated, by level: the last is all but two.
const MOVED: [usize; 3] = [0, 5, usize::MAX];

/// Rows that are computed at least, by default and where `TRAIL_FLIPS_ROWS` does not say.
const ROWS: u64 = 10_000;

/// A random model of one of three families: two pieces in its down projection, queries that share a
/// key head, and in one a window.
fn model(family: usize) -> Model {
    let config = ModelConfig {
        hidden_size: 64,
        intermediate_size: 1032,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 1,
        head_dim: 64,
        vocab_size: 256,
        max_context: 640,
        windows: vec![None; 2],
        eos_tokens: Vec::new(),
        ..ModelConfig::named("demo").expect("a known shape")
    };
    let config = match family {
        0 => ModelConfig { windows: vec![Some(70), None], ..config },
        1 => ModelConfig { architecture: Architecture::Qwen2, num_kv_heads: 2, ..config },
        _ => {
            ModelConfig { architecture: Architecture::Qwen3, num_heads: 2, head_dim: 128, ..config }
        }
    };
    Model::random_of(config, Dtype::Bf16, 20 + family as u64).expect("a small model")
}

/// Requests with common beginnings and repeated tokens, greedy and sampled, one of two partitions.
fn requests() -> Vec<Request> {
    let request = |i: u32| {
        let length = if i == 5 { 500 } else { 20 + i * 11 };
        let prompt = (0..length).map(|at| (at % 9 * 7 + at / 33 * (i % 3)) % 256).collect();
        let greedy = i.is_multiple_of(2);
        let sampling = SamplingParams {
            temperature: if greedy { 0.0 } else { 0.8 },
            seed: u64::from(i),
            top_p: 0.95,
            ..SamplingParams::default()
        };
        let tokens = 12 + 2 * i;
        Request {
            sampling,
            ignore_eos: true,
            true_length: Some(tokens),
            ..Request::new(prompt, tokens)
        }
    };
    (0..8).map(request).collect()
}

/// Tokens, and bits of their log-probabilities.
type Answer = Vec<(u32, u32)>;

fn answer(handle: &RequestHandle) -> Answer {
    let mut answer = Vec::new();
    while let Some(event) = handle.recv_timeout(LIMIT) {
        if let Event::Token { id, logprob } = event {
            answer.push((id, logprob.to_bits()));
        }
    }
    answer
}

fn config(row: [usize; SETTINGS.len()]) -> EngineConfig {
    let [_, _, running, budget, blocks, policy, preemption, reuse, megakernel, _] = row;
    let preemption = [Preemption::Recompute, Preemption::Swap][preemption];
    let cuda = CudaSettings {
        host_kv_bytes: 1 << 22,
        megakernel: megakernel > 0,
        ..CudaSettings::default()
    };
    EngineConfig {
        device: CUDA,
        policy: ["fcfs", "oracle", "rr"][policy].parse().expect("a policy"),
        scheduler: SchedulerConfig { preemption, ..SchedulerConfig::default() },
        cuda,
        max_running: Some([1, 4, 8][running]),
        token_budget: Some([16, 70, 600][budget]),
        kv_blocks: Some([38, 120][blocks]),
        no_prefix_cache: reuse % 2 == 0,
        speculate: if reuse / 2 > 0 { Speculate::Ngram } else { Speculate::Off },
        queue: QueueConfig { max_requests: 32, ..QueueConfig::default() },
        ..EngineConfig::default()
    }
}

/// The same request, moved here after the first tokens of `answer`.
fn moved(mut request: Request, answer: &[(u32, u32)]) -> Request {
    request.prompt.extend(answer.iter().map(|(token, _)| token));
    request.generated = answer.len() as u32;
    request
}

/// The answers to all requests at once, with what other engines are said to have generated.
fn answers(
    model: &Arc<Model>,
    row: [usize; SETTINGS.len()],
    reversed: bool,
    expected: &[Answer],
) -> (Vec<Answer>, Stats) {
    let engine = Engine::new(model.clone(), config(row)).expect("an engine");
    let before = expected.iter().map(|answer| &answer[..MOVED[row[9]].min(answer.len() - 2)]);
    let before: Vec<&[(u32, u32)]> = before.collect();
    let requests: Vec<Request> =
        requests().into_iter().zip(&before).map(|(request, of)| moved(request, of)).collect();
    let mut order: Vec<usize> = (0..requests.len()).collect();
    if reversed {
        order.reverse();
    }
    let mut handles: Vec<Option<RequestHandle>> = requests.iter().map(|_| None).collect();
    for at in order {
        handles[at] = Some(engine.submit(requests[at].clone()).expect("fits"));
    }
    let answers = handles.iter().flatten().zip(before).map(|(handle, before)| {
        let mut whole = before.to_vec();
        whole.extend(answer(handle));
        whole
    });
    (answers.collect(), engine.stats())
}

/// The answers to each request alone, by the plainest settings.
fn alone(model: &Arc<Model>) -> Vec<Answer> {
    let engine =
        Engine::new(model.clone(), config([0, 0, 0, 2, 1, 0, 0, 0, 0, 0])).expect("an engine");
    requests().into_iter().map(|request| answer(&engine.submit(request).expect("fits"))).collect()
}

#[test]
fn cuda_an_answer_is_a_function_of_its_request() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let wanted: u64 = match std::env::var("TRAIL_FLIPS_ROWS") {
        Ok(rows) => rows.parse().expect("TRAIL_FLIPS_ROWS: a number"),
        Err(_) => ROWS,
    };
    let models = [0, 1, 2].map(|family| Arc::new(model(family)));
    // By architecture, and family.
    let expected = [Chip::A100, Chip::H100].map(|chip| {
        emulator.chip(chip);
        models.each_ref().map(alone)
    });
    let positions = |answers: &Vec<Answer>| answers.iter().map(Vec::len).sum::<usize>();
    assert!(expected.iter().flatten().all(|of| positions(of) == 8 * 12 + 2 * 28));
    let (mut rows, mut stats, mut runs) = (0, Stats::default(), 0);
    let arrays = (1..).flat_map(|seed| covering::array(&SETTINGS.map(|(_, levels)| levels), seed));
    for row in arrays {
        if rows >= wanted {
            break;
        }
        emulator.chip(CHIPS[row[0]]);
        let (family, is_hopper) = (row[1], CHIPS[row[0]] == Chip::H100);
        let expected = &expected[usize::from(is_hopper)][family];
        let (found, of) = answers(&models[family], row, runs % 2 > 0, expected);
        let what = SETTINGS.map(|(name, _)| name).into_iter().zip(row).collect::<Vec<_>>();
        for (request, (found, expected)) in found.iter().zip(expected).enumerate() {
            let at = (0..expected.len()).find(|&at| found.get(at) != expected.get(at));
            assert_eq!(at, None, "{what:?}: request {request} has another token or bit there");
        }
        rows += of.prompt_tokens - of.cached_tokens + of.generated_tokens + of.recomputed_tokens;
        stats.cached_tokens += of.cached_tokens;
        stats.accepted_tokens += of.accepted_tokens;
        stats.evictions += of.evictions;
        stats.swaps_out += of.swaps_out;
        runs += 1;
        if runs % 100 == 0 {
            println!("{runs} runs, {rows} rows");
        }
    }
    println!("{runs} runs, {rows} rows, {stats:?}");
    let Stats { cached_tokens, accepted_tokens, evictions, swaps_out, .. } = stats;
    let used = [cached_tokens, accepted_tokens, evictions + swaps_out];
    assert!(used.iter().all(|&count| count > 0), "a setting had no effect: {used:?}");
}
