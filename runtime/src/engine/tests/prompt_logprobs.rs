//! Scores of prompts: the same at every position, whatever the chunks, the prefix cache, the
//! preemptions and the backend, and they change no answer.

use std::sync::Arc;

use trail_scheduler::Preemption;
use trail_scheduler::policies::Trail;

use super::prefix::large;
use super::{
    LIMIT, config, engine, model, preempting_by, requests, run_until_idle, stepped_ahead,
    stepped_engine,
};
use crate::cpu::Compute;
use crate::engine::{
    CpuSettings, EngineConfig, Event, FinishReason, PolicyKind, Request, RequestHandle,
    SteppedEngine,
};
use crate::model::Model;
use crate::reference::Reference;

/// Tokens that are reported beside each of a prompt.
const TOP: usize = 3;

/// A token and the bits of its log-probability.
type Token = (u32, u32);

/// Events of a request as they are compared.
#[derive(Debug, Default, PartialEq)]
struct Events {
    /// Of the prompt, with rank and alternatives.
    prompt: Vec<(Token, u32, Vec<Token>)>,
    tokens: Vec<Token>,
    reason: Option<FinishReason>,
}

fn events(handle: &RequestHandle) -> Events {
    let (mut events, mut top) = (Events::default(), Vec::new());
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Alternative { id, logprob } => top.push((id, logprob.to_bits())),
            Event::PromptToken { id, logprob, rank } => {
                assert!(events.tokens.is_empty(), "a prompt comes before its answer");
                events.prompt.push(((id, logprob.to_bits()), rank, std::mem::take(&mut top)));
            }
            Event::Token { id, logprob } => events.tokens.push((id, logprob.to_bits())),
            Event::Finished { reason } => events.reason = Some(reason),
            _ => {}
        }
    }
    events
}

/// The requests of all tests; every other one is scored, and some prompts are long.
fn half_scored() -> Vec<Request> {
    let score = |(i, mut request): (usize, Request)| {
        if i % 4 == 0 {
            request.prompt = (0..100 + i as u32).map(|at| (at * 11 + i as u32) % 50).collect();
        }
        request.sampling.prompt_logprobs = (i % 2 == 0).then_some(TOP as u8);
        request
    };
    requests().enumerate().map(score).collect()
}

fn exact(config: EngineConfig) -> EngineConfig {
    let cpu = CpuSettings { threads: Some(2), compute: Compute::Exact, ..config.cpu };
    EngineConfig { cpu, ..config }
}

fn run(engine: &mut SteppedEngine) -> Vec<Events> {
    let submit = |request| engine.submit(request).expect("fits");
    let handles: Vec<_> = half_scored().into_iter().map(submit).collect();
    run_until_idle(engine);
    assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0));
    handles.iter().map(events).collect()
}

/// The events with all rows of a prompt in one chunk.
fn expected(model: &Arc<Model>) -> Vec<Events> {
    let config =
        EngineConfig { no_prefix_cache: true, token_budget: Some(4096), ..large(PolicyKind::Fcfs) };
    run(&mut stepped_engine(model, exact(config)))
}

#[test]
fn every_token_of_a_prompt_is_scored_as_by_the_plain_forward_pass() {
    let model = model();
    let reference = Reference::new(&model);
    for (request, events) in half_scored().iter().zip(expected(&model)) {
        if request.sampling.prompt_logprobs.is_none() {
            assert!(events.prompt.is_empty());
            continue;
        }
        assert_eq!(events.prompt.len(), request.prompt.len() - 1);
        let logits = reference.logits(&request.prompt);
        for (at, ((id, logprob), rank, top)) in events.prompt.iter().enumerate() {
            assert_eq!(*id, request.prompt[at + 1]);
            let row: Vec<f64> = logits[at].iter().map(|&logit| f64::from(logit)).collect();
            let max = row.iter().copied().fold(f64::MIN, f64::max);
            let log_sum = max + row.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
            let near = |id: u32, bits: u32| {
                (row[id as usize] - log_sum - f64::from(f32::from_bits(bits))).abs() < 1e-4
            };
            assert!(near(*id, *logprob), "position {at}");
            assert!(top.len() == TOP && top.iter().all(|&(id, bits)| near(id, bits)));
            // Tokens within the tolerance may change places.
            let better = |by: f64| {
                row.iter().filter(|logit| **logit > row[*id as usize] + by).count() as u32
            };
            assert!((1 + better(2e-4)..=1 + better(-2e-4)).contains(rank), "rank {rank} at {at}");
            let is_best = top.iter().position(|of| of.0 == *id).map(|at| at as u32 + 1);
            assert_eq!(is_best, (*rank <= TOP as u32).then_some(*rank));
        }
    }
}

#[test]
fn chunks_the_prefix_cache_and_recomputes_change_no_bit_and_repeat_no_token() {
    let model = model();
    let expected = expected(&model);
    for (token_budget, kv_blocks, no_prefix_cache) in
        [(5, 400, true), (33, 400, false), (17, 14, false), (64, 14, true)]
    {
        for policy in [PolicyKind::Fcfs, PolicyKind::Trail(Trail::paper(1.0))] {
            let config = EngineConfig {
                token_budget: Some(token_budget),
                kv_blocks: Some(kv_blocks),
                no_prefix_cache,
                ..config(&model, policy)
            };
            let mut engine = stepped_engine(&model, exact(config));
            // The second time the cache has the other prompts.
            for _ in 0..2 {
                assert_eq!(run(&mut engine), expected, "{policy}, budget {token_budget}");
            }
            let stats = engine.stats();
            assert_eq!(stats.evictions > 0, kv_blocks == 14, "{policy}, {kv_blocks} blocks");
        }
    }
}

#[test]
fn late_tokens_and_swaps_change_no_bit_and_repeat_no_token() {
    let model = model();
    let expected = expected(&model);
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        let config = EngineConfig {
            token_budget: Some(23),
            scheduler: preempting_by(preemption),
            ..config(&model, PolicyKind::Trail(Trail::paper(1.0)))
        };
        let mut engine = stepped_ahead(&model, exact(config), None);
        assert_eq!(run(&mut engine), expected, "{preemption:?}");
        let stats = engine.stats();
        assert!(stats.evictions + stats.swaps_out > 0, "{preemption:?}: nothing was preempted");
    }
}

/// A request whose prompt was computed before finds it, unless its prompt is to be scored.
#[test]
fn a_scored_prompt_takes_no_block_from_the_prefix_cache() {
    let engine = engine(&model(), large(PolicyKind::Fcfs));
    let ask = |prompt_logprobs| {
        let mut request = Request::new((0..40).collect(), 3);
        request.sampling.prompt_logprobs = prompt_logprobs;
        let handle = engine.submit(request).expect("fits");
        (events(&handle).prompt.len(), handle.cached_tokens())
    };
    assert_eq!((ask(None), ask(None), ask(Some(0))), ((0, 0), (0, 32), (39, 0)));
}

#[test]
fn a_request_of_no_tokens_ends_after_its_prompt() {
    let model = model();
    let scored = |prompt: Vec<u32>, top| {
        let mut request = Request::new(prompt, 0);
        request.sampling.prompt_logprobs = top;
        request
    };
    for mut engine in [
        stepped_engine(&model, large(PolicyKind::trail(0.8))),
        stepped_ahead(&model, large(PolicyKind::trail(0.8)), None),
    ] {
        let prompts = [scored((0..70).collect(), Some(0)), scored(vec![7], Some(2))];
        let plain = scored((0..70).collect(), None);
        let handles: Vec<_> =
            prompts.into_iter().chain([plain]).map(|r| engine.submit(r).expect("fits")).collect();
        run_until_idle(&mut engine);
        let ended: Vec<_> = handles.iter().map(events).collect();
        assert!(ended.iter().all(|of| of.tokens.is_empty()));
        assert!(ended.iter().all(|of| of.reason == Some(FinishReason::Length)));
        assert_eq!(ended.iter().map(|of| of.prompt.len()).collect::<Vec<_>>(), [69, 0, 0]);
        let stats = engine.stats();
        assert_eq!((stats.finished, stats.generated_tokens, stats.blocks_used), (3, 0, 0));
    }
}
