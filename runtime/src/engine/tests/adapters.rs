//! Requests with adapters: their answers are those of each alone, and what cannot run is refused.

use super::prefix::{Answer, collect, large, plain};
use super::*;
use crate::engine::{Speculate, SubmitError};
use crate::model::ModelConfig;

/// Greedy and sampled requests that begin alike, without and with either of two adapters in turn.
fn mixed(model: &Model) -> Vec<Request> {
    let adapter = |seed| {
        let (rank, dtype) = (3 + 4 * seed as usize, Dtype::F32);
        Some(Arc::new(Adapter::random(&model.config, &Projection::ALL, rank, dtype, seed)))
    };
    let adapters = [None, adapter(1), adapter(2)];
    let request = |at: u32| {
        let prompt = (0..36).map(|i| i % 6 + 5).chain(at..at + 5).collect();
        let mut request = Request { ignore_eos: true, ..Request::new(prompt, 24) };
        request.sampling.seed = at.into();
        request.sampling.temperature = if at.is_multiple_of(2) { 0.0 } else { 0.8 };
        request.adapter = adapters[at as usize % 3].clone();
        request
    };
    (0..12).map(request).collect()
}

/// Tokens and bits of log-probabilities.
fn bits(answer: Answer) -> (Vec<u32>, Vec<u32>) {
    (answer.tokens, answer.logprobs)
}

#[test]
fn answers_with_adapters_are_those_alone_under_every_policy() {
    let model = model();
    let requests = mixed(&model);
    let alone = engine(&model, plain());
    let ask = |request: &Request| bits(collect(&alone.submit(request.clone()).unwrap()));
    let expected: Vec<_> = requests.iter().map(ask).collect();
    let own = ask(&Request { adapter: None, ..requests[1].clone() });
    assert_ne!(own, expected[1], "the adapter changes nothing");
    let draft = ModelConfig { num_layers: 1, windows: vec![None], ..model.config.clone() };
    let draft = Arc::new(Model::random_of(draft, Dtype::Bf16, 9).expect("a small model"));
    let (mut accepted, mut evictions, mut hits) = (0, 0, 0);
    for (at, (name, _)) in PolicyKind::HELP.iter().enumerate() {
        for (kv_blocks, rows) in [(14, 512), (400, 12)] {
            let speculate = match (at + kv_blocks) % 3 {
                0 => Speculate::Off,
                1 => Speculate::Ngram,
                _ => Speculate::Draft { model: draft.clone(), always: true },
            };
            let config = EngineConfig {
                kv_blocks: Some(kv_blocks),
                token_budget: Some(rows),
                speculate,
                cpu: CpuSettings { threads: Some(2), ..CpuSettings::default() },
                // Policies rank by the probe or by nothing.
                replays: true,
                ..config(&model, name.parse().unwrap())
            };
            let engine = engine(&model, config);
            let handles: Vec<_> =
                requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
            for (at, (handle, expected)) in handles.iter().zip(&expected).enumerate() {
                assert_eq!(bits(collect(handle)), *expected, "{name}, {kv_blocks} blocks, {at}");
            }
            let stats = engine.stats();
            accepted += stats.accepted_tokens;
            evictions += stats.evictions;
            hits += stats.cached_tokens;
        }
    }
    assert!(accepted > 0 && evictions > 0 && hits > 0, "{accepted} {evictions} {hits}");
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let engine = engine(&model(), large(PolicyKind::Fcfs));
    let other = ModelConfig { intermediate_size: 6, ..model().config.clone() };
    let adapter = Adapter::random(&other, &[Projection::Up], 2, Dtype::F32, 1);
    let request = Request { adapter: Some(Arc::new(adapter)), ..Request::new(vec![1, 2], 3) };
    let error = engine.submit(request).err().expect("refused");
    assert!(matches!(&error, SubmitError::Adapter(why) if why.contains("another base")), "{error}");
}
