//! A block sink hears of exactly the blocks that requests find in the prefix cache.

use std::collections::HashMap;
use std::sync::Mutex;

use super::prefix::large;
use super::*;
use crate::backend::BLOCK_TOKENS;
use crate::engine::{BlockHash, BlockSink, StoredBlock};

/// All tokens up to the end of each block that can be found.
#[derive(Clone, Default)]
struct Mirror(Arc<Mutex<HashMap<BlockHash, Vec<u32>>>>);

impl BlockSink for Mirror {
    fn stored(&mut self, StoredBlock { hash, parent, tokens }: StoredBlock<'_>) {
        let mut found = self.0.lock().unwrap();
        let before = parent.map(|parent| found[&parent].clone()).unwrap_or_default();
        assert_eq!(tokens.len(), BLOCK_TOKENS);
        assert_eq!(found.insert(hash, [&before[..], tokens].concat()), None);
    }

    fn removed(&mut self, hash: BlockHash) {
        self.0.lock().unwrap().remove(&hash);
    }
}

impl Mirror {
    /// Tokens at the beginning of `prompt` that can be found; its last token is computed.
    fn hit(&self, prompt: &[u32]) -> usize {
        let found = self.0.lock().unwrap();
        let blocks = (prompt.len() - 1) / BLOCK_TOKENS;
        let is_found = |block: &usize| {
            let end = block * BLOCK_TOKENS;
            found.values().any(|tokens| tokens[..] == prompt[..end])
        };
        (1..=blocks).take_while(is_found).count() * BLOCK_TOKENS
    }
}

/// Runs one request alone; its tokens, and what it found of its prompt.
fn ask(engine: &mut SteppedEngine, request: Request) -> (Vec<u32>, usize) {
    let handle = engine.submit(request).unwrap();
    run_until_idle(engine);
    let cached = handle.cached_tokens() as usize;
    (answer(handle).0, cached)
}

/// Prompts that go on from each other's answers, with too few blocks for all; before them many
/// requests at once, which evict each other. `swaps`: requests find blocks of the host as well.
fn check(mut engine: SteppedEngine, mirror: &Mirror, swaps: bool) {
    answers_at_once(&mut engine);
    let mut histories: Vec<Vec<u32>> =
        requests().step_by(5).map(|request| request.prompt.clone()).collect();
    let (mut hits, mut misses) = (0, 0);
    for turn in 0..4 {
        for history in &mut histories {
            history.extend((0..7).map(|at| at * 3 + turn));
            let expected = mirror.hit(history);
            let request =
                Request { ignore_eos: true, ..Request::new(history.clone(), 9 + turn * 4) };
            let (tokens, cached) = ask(&mut engine, request);
            let is_found = cached == expected || swaps && cached > expected;
            assert!(is_found, "turn {turn}, {} tokens: {cached}, not {expected}", history.len());
            history.extend(tokens);
            *(if cached > 0 { &mut hits } else { &mut misses }) += 1;
        }
    }
    assert!(hits > 3 && misses > 3, "{hits} hits, {misses} misses");
}

fn with_sink(config: EngineConfig) -> (EngineConfig, Mirror) {
    let mirror = Mirror::default();
    (EngineConfig { block_sink: Some(Box::new(mirror.clone())), ..config }, mirror)
}

#[test]
fn requests_find_the_blocks_that_a_sink_has_heard_of() {
    let model = model();
    for policy in [PolicyKind::Fcfs, PolicyKind::trail(1.0)] {
        let (config, mirror) = with_sink(config(&model, policy));
        check(stepped_engine(&model, config), &mirror, false);
        for preemption in [Preemption::Recompute, Preemption::Swap] {
            let scheduler = preempting_by(preemption);
            let (config, mirror) = with_sink(super::config(&model, policy));
            let config = EngineConfig { scheduler, ..config };
            let swaps = preemption == Preemption::Swap;
            check(stepped_ahead(&model, config, None), &mirror, swaps);
        }
    }
}

#[test]
fn a_sink_does_not_hear_of_blocks_under_a_salt() {
    let model = model();
    let (config, mirror) = with_sink(large(PolicyKind::Fcfs));
    let mut engine = stepped_engine(&model, config);
    let prompt: Vec<u32> = (0..40).collect();
    let with = |salt: &[u8]| {
        let cache_salt = salt.to_vec();
        Request { cache_salt, ..Request::new(prompt.clone(), 2) }
    };
    assert_eq!(ask(&mut engine, with(b"a")).1 + ask(&mut engine, with(b"a")).1, 32);
    assert_eq!(mirror.hit(&prompt), 0);
    ask(&mut engine, with(b""));
    assert_eq!(mirror.hit(&prompt), 32);
}

/// A hybrid's requests begin at snapshots alone, which a sink does not hear of.
#[test]
fn a_sink_hears_of_no_block_of_a_hybrid() {
    let model = Arc::new(Model::random("tiny-hybrid", Dtype::Bf16, 8).expect("a known shape"));
    let (config, mirror) = with_sink(large(PolicyKind::Fcfs));
    let mut engine = stepped_engine(&model, config);
    let prompt: Vec<u32> = (0..40).collect();
    let cached = [(); 2].map(|()| ask(&mut engine, Request::new(prompt.clone(), 2)).1);
    assert_eq!((cached, mirror.hit(&prompt)), ([0, 32], 0));
}
