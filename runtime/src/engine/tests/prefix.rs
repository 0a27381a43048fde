//! The prefix cache: answers, log probabilities and predictions are those without it.

use std::collections::BTreeMap;

use super::*;
use crate::backend::BLOCK_TOKENS;
use crate::engine::Speculate;
use crate::engine::block_hashes::BlockHasher;

/// The answer to a request, to the bit.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<u32>,
    pub(super) alternatives: Vec<(u32, u32)>,
    /// Bits of the expected remaining tokens, by the tokens generated.
    pub(super) predictions: BTreeMap<u32, u32>,
    pub(super) cached_tokens: u32,
    pub(super) accepted_tokens: u32,
}

pub(super) fn collect(handle: &RequestHandle) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Token { id, logprob } => {
                answer.tokens.push(id);
                answer.logprobs.push(logprob.to_bits());
            }
            Event::Alternative { id, logprob } => {
                answer.alternatives.push((id, logprob.to_bits()));
            }
            Event::Prediction { generated, remaining } => {
                answer.predictions.insert(generated, remaining.to_bits());
            }
            _ => {}
        }
    }
    answer.cached_tokens = handle.cached_tokens();
    answer.accepted_tokens = handle.accepted_tokens();
    answer
}

/// Conversations of three turns: two families of system prompts, each turn with the whole
/// conversation before it, greedy and sampled. Returns the answers by turn and conversation.
pub(super) fn converse(engine: &Engine, conversations: u32) -> Vec<Answer> {
    let mut histories: Vec<Vec<u32>> =
        (0..conversations).map(|of| (0..37).map(|at| (at * 7 + of % 2) % 50).collect()).collect();
    let mut answers = Vec::new();
    for turn in 0..3 {
        let ask = |(of, history): (usize, &mut Vec<u32>)| {
            history.extend((0..5 + of as u32 % 11).map(|at| (at * 3 + turn + of as u32) % 50));
            let mut request = Request::new(history.clone(), 4 + (of as u32 * 5 + turn) % 23);
            request.sampling.seed = of as u64;
            // The last ones repeat themselves, with errors.
            request.sampling.temperature = [0.0, 1.0, 0.3][of % 3];
            request.sampling.repetition_penalty = [1.0, 1.2][of % 2];
            request.sampling.top_logprobs = [0, 3][of % 2];
            request.ignore_eos = true;
            request.true_length = Some(request.max_tokens);
            engine.submit(request).unwrap()
        };
        let handles: Vec<RequestHandle> = histories.iter_mut().enumerate().map(ask).collect();
        for (handle, history) in handles.iter().zip(&mut histories) {
            let answer = collect(handle);
            history.extend(&answer.tokens);
            answers.push(answer);
        }
    }
    answers
}

pub(super) fn without_counts(mut answers: Vec<Answer>) -> Vec<Answer> {
    for answer in &mut answers {
        (answer.cached_tokens, answer.accepted_tokens) = (0, 0);
    }
    answers
}

/// An engine that computes every token alone.
pub(super) fn plain() -> EngineConfig {
    EngineConfig { no_prefix_cache: true, ..large(PolicyKind::Fcfs) }
}

pub(super) fn large(policy: PolicyKind) -> EngineConfig {
    let speculate = Speculate::Off;
    EngineConfig { kv_blocks: Some(400), speculate, ..config(&model(), policy) }
}

#[test]
fn answers_are_those_without_the_cache_under_every_policy() {
    let model = model();
    let plain = plain();
    let expected = converse(&engine(&model, plain), 6);
    for (name, _) in PolicyKind::HELP {
        let policy: PolicyKind = name.parse().unwrap();
        for kv_blocks in [14, 400] {
            let config = EngineConfig {
                kv_blocks: Some(kv_blocks),
                // Policies rank by the probe or by nothing.
                replays: true,
                ..large(policy)
            };
            let engine = engine(&model, config);
            let answers = converse(&engine, 6);
            let hits: u32 = answers.iter().map(|answer| answer.cached_tokens).sum();
            let stats = engine.stats();
            assert!(hits > 0 && u64::from(hits) <= stats.cached_tokens, "{name}: {hits}");
            assert_eq!(without_counts(answers), expected, "{name}, {kv_blocks} blocks");
        }
    }
}

/// Turn 2 finds the prompt and the answer of turn 1 but for the last block, which its last token
/// never filled.
#[test]
fn a_turn_finds_the_turn_before() {
    let model = model();
    let engine = engine(&model, large(PolicyKind::Fcfs));
    let answers = converse(&engine, 1);
    let lengths = [42, 42 + 4 + 5, 42 + 4 + 5 + 5 + 5];
    assert_eq!(answers[0].cached_tokens, 0);
    for turn in 1..3 {
        // The answer's last token was sampled, and never computed.
        let computed = lengths[turn - 1] + answers[turn - 1].tokens.len() - 1;
        let whole = computed / BLOCK_TOKENS * BLOCK_TOKENS;
        assert_eq!(answers[turn].cached_tokens as usize, whole, "turn {turn}");
    }
}

#[test]
fn requests_of_two_salts_and_those_that_ask_for_it_share_nothing() {
    let engine = engine(&model(), large(PolicyKind::Fcfs));
    let ask = |salt: &[u8], shares_prefix| {
        let mut request = Request::new((0..40).collect(), 3);
        (request.cache_salt, request.shares_prefix) = (salt.to_vec(), shares_prefix);
        collect(&engine.submit(request).unwrap()).cached_tokens
    };
    assert_eq!((ask(b"", true), ask(b"", true)), (0, 32));
    assert_eq!((ask(b"a", true), ask(b"a", true), ask(b"b", true)), (0, 32, 0));
    assert_eq!(ask(b"", false), 0);
}

/// An adapter changes keys and values: its requests share blocks with each other alone, and one
/// that is loaded again is another.
#[test]
fn requests_of_two_adapters_share_nothing() {
    let model = model();
    let engine = engine(&model, large(PolicyKind::Fcfs));
    let load = || Arc::new(Adapter::random(&model.config, &Projection::ALL, 4, Dtype::F32, 3));
    let ask = |adapter: Option<&Arc<Adapter>>, salt: &[u8]| {
        let mut request = Request::new((0..40).collect(), 3);
        (request.adapter, request.cache_salt) = (adapter.cloned(), salt.to_vec());
        collect(&engine.submit(request).unwrap())
    };
    let (first, again) = (load(), load());
    let cached = |adapter, salt| ask(adapter, salt).cached_tokens;
    assert_eq!(
        (cached(None, b""), cached(Some(&first), b""), cached(Some(&first), b"")),
        (0, 0, 32)
    );
    assert_eq!(
        (cached(Some(&again), b""), cached(Some(&first), b"a"), cached(None, b"")),
        (0, 0, 32)
    );
    let bits = |adapter| ask(adapter, b"").logprobs;
    assert_ne!(bits(None), bits(Some(&first)));
    assert_eq!(bits(Some(&again)), bits(Some(&first)));
}

/// A request that another engine began: what it generated there is not part of its prompt.
#[test]
fn a_moved_request_goes_on_as_without_the_cache() {
    let model = model();
    let prompt: Vec<u32> = (0..40).map(|at| at * 7 % 50).collect();
    let begun = Request { ignore_eos: true, ..Request::new(prompt.clone(), 40) };
    let ends = |no_prefix_cache| {
        let engine = engine(&model, EngineConfig { no_prefix_cache, ..large(PolicyKind::Fcfs) });
        let whole = collect(&engine.submit(begun.clone()).unwrap());
        let prompt = [&prompt[..], &whole.tokens[..20]].concat();
        let moved = Request { generated: 20, prompt, ..begun.clone() };
        (whole, collect(&engine.submit(moved).unwrap()))
    };
    let (whole, mut end) = ends(false);
    assert_eq!(end.tokens, whole.tokens[20..]);
    assert_eq!(end.cached_tokens, 32);
    end.cached_tokens = 0;
    assert_eq!((whole, end), ends(true));
}

/// Two prompts of equal hashes: the second finds the blocks of the first, and begins again.
#[test]
fn a_collision_of_hashes_serves_no_other_requests_tokens() {
    let model = model();
    let prompts: Vec<Vec<u32>> =
        (0..8).map(|of| (0..50).map(|at| (at * 3 + of * 11) % 50).collect()).collect();
    let answers = |engine: &Engine| -> Vec<Answer> {
        let ask =
            |prompt: &Vec<u32>| collect(&engine.submit(Request::new(prompt.clone(), 20)).unwrap());
        without_counts(prompts.iter().map(ask).collect())
    };
    let plain = plain();
    let expected = answers(&engine(&model, plain));
    let colliding =
        EngineConfig { hasher: Some(BlockHasher::colliding()), ..large(PolicyKind::Fcfs) };
    let engine = engine(&model, colliding);
    assert_eq!(answers(&engine), expected);
    assert!(engine.stats().hash_collisions > 0, "no hash collided");
}

/// An ended request's blocks stay known, and none is in use.
#[test]
fn many_turns_leave_no_block_in_use() {
    let engine = engine(&model(), large(PolicyKind::trail(0.8)));
    converse(&engine, 12);
    let end = Instant::now() + LIMIT;
    while engine.stats().blocks_used > 0 {
        assert!(Instant::now() < end, "{:?}", engine.stats());
        std::thread::yield_now();
    }
}
