//! Hybrids: answers are those of each request alone, whatever becomes of recurrent states.

use super::prefix::{Answer, collect, converse, large};
use super::speculation::assert_equal;
use super::*;
use crate::backend::{Backend, DraftModel, Sampled, Scored, Step};
use crate::cpu::CpuBackend;
use crate::engine::block_hashes::BlockHasher;
use crate::engine::{Fault, Speculate, Stats};

fn hybrid() -> Arc<Model> {
    Arc::new(Model::random("tiny-hybrid", Dtype::Bf16, 8).expect("a known shape"))
}

/// Each request alone, token by token.
fn expected(model: &Arc<Model>) -> Vec<Answer> {
    let config = EngineConfig { no_prefix_cache: true, ..large(PolicyKind::Fcfs) };
    converse(&engine(model, config), 6)
}

/// Policies, threads, most requests and rows of a step, KV blocks, prefix cache, speculation.
#[test]
fn answers_do_not_depend_on_what_else_an_engine_does() {
    let model = hybrid();
    let expected = expected(&model);
    let mut seen = Stats::default();
    for (at, name) in ["fcfs", "trail", "rr", "srpt"].into_iter().cycle().take(32).enumerate() {
        let level = |bit: usize| (at / 4) >> bit & 1 == 1;
        let config = EngineConfig {
            kv_blocks: Some(if level(0) { 14 } else { 400 }),
            no_prefix_cache: level(1),
            speculate: if level(2) { Speculate::Ngram } else { Speculate::Off },
            cpu: CpuSettings { threads: Some(1 + at % 3), ..CpuSettings::default() },
            max_running: Some([1, 4, 3][at % 3]),
            token_budget: Some([512, 21, 40][at % 3]),
            // Policies rank by the probe or by nothing.
            replays: true,
            ..large(name.parse().unwrap())
        };
        let engine = engine(&model, config);
        assert_equal(converse(&engine, 6), &expected, &format!("{name}, run {at}"));
        let stats = engine.stats();
        seen.cached_tokens += stats.cached_tokens;
        seen.evictions += stats.evictions;
        seen.accepted_tokens += stats.accepted_tokens;
    }
    let counts = [seen.evictions, seen.accepted_tokens, seen.cached_tokens];
    assert!(!counts.contains(&0), "evictions, accepted and cached tokens: {counts:?}");
}

/// A smaller model may propose the tokens of a hybrid.
#[test]
fn a_draft_model_proposes_tokens_of_a_hybrid() {
    let model = hybrid();
    let expected = expected(&model);
    let speculate = Speculate::Draft { model: super::model(), always: true };
    let config = EngineConfig { speculate, ..large(PolicyKind::Fcfs) };
    let engine = engine(&model, config);
    assert_equal(converse(&engine, 6), &expected, "a draft model");
    let stats = engine.stats();
    assert!(stats.accepted_tokens < stats.draft_tokens, "{stats:?}");
}

/// Tokens of the prefix cache that answers to `prompts` begin with, and the last answer.
fn cached(engine: &Engine, prompts: &[&[u32]]) -> (Vec<u32>, Vec<u32>) {
    let ask = |prompt: &&[u32]| {
        let mut request = Request { ignore_eos: true, ..Request::new(prompt.to_vec(), 20) };
        request.sampling.temperature = 0.0;
        collect(&engine.submit(request).unwrap())
    };
    let mut answers: Vec<Answer> = prompts.iter().map(ask).collect();
    let cached = answers.iter().map(|answer| answer.cached_tokens).collect();
    (cached, answers.pop().expect("a prompt").tokens)
}

/// Snapshots are where requests begin alike: at the last blocks of prompts and answers, and from
/// the second request on where its prompt leaves that of another.
#[test]
fn requests_begin_with_a_turn_before_or_with_what_two_others_had() {
    let engine = engine(&hybrid(), large(PolicyKind::Fcfs));
    let prompt = |own: u32| (0..40).chain((0..20).map(|at| 50 + own + at)).collect::<Vec<u32>>();
    let [first, second, third] = [1, 2, 3].map(prompt);
    let (hits, _) = cached(&engine, &[&first, &second, &third]);
    assert_eq!(hits, [0, 0, 32]);
    let (hits, answer) = cached(&engine, &[&first]);
    assert_eq!(hits, [48], "the last block before its last token");
    // 79 tokens have states.
    let turn = [&first[..], &answer, &[7; 5]].concat();
    assert_eq!(cached(&engine, &[&turn]).0, [64]);
}

/// Blocks of other tokens that are known by the same hash get no snapshot: no request begins with
/// them.
#[test]
fn a_collision_of_hashes_gives_no_request_anothers_state() {
    let model = hybrid();
    let hasher = Some(BlockHasher::colliding());
    let engine = engine(&model, EngineConfig { hasher, ..large(PolicyKind::Fcfs) });
    assert_equal(converse(&engine, 6), &expected(&model), "colliding hashes");
}

/// A CPU backend with fewer recurrent states than it has.
struct FewStates {
    inner: CpuBackend,
    count: usize,
}

impl Backend for FewStates {
    fn ahead(&self) -> usize {
        self.inner.ahead()
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        self.inner.launch(step)
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.inner.collect(sampled)
    }

    fn scores(&self) -> Option<&[Scored]> {
        self.inner.scores()
    }

    fn takes_drafts(&self) -> bool {
        false
    }

    fn draft_model(&mut self) -> Option<&mut dyn DraftModel> {
        None
    }

    fn num_states(&self) -> usize {
        self.count
    }
}

/// Paused requests lose their states to running ones, and begin again.
#[test]
fn a_request_whose_state_was_taken_begins_again() {
    let model = hybrid();
    let expected = expected(&model);
    let mut lost = 0;
    for (name, no_prefix_cache) in [("rr", true), ("rr", false), ("trail", false)] {
        let config = EngineConfig {
            no_prefix_cache,
            max_running: Some(2),
            replays: true,
            ..large(name.parse().unwrap())
        };
        let make = |config: &mut EngineConfig, model: &_, probe: Option<ProbeParts>| {
            let forward = config.cpu_forward(model)?;
            let kv_blocks = forward.options().num_blocks;
            let tap = probe.map(|parts| (parts.probe.layers(), parts.probe as Arc<_>));
            let backend = FewStates { inner: CpuBackend::new(forward, tap), count: 4 };
            Ok(BuiltBackend { backend: Box::new(backend), kv_blocks, device: "few states".into() })
        };
        let engine = Engine::with_backend(model.clone(), config, make).unwrap();
        assert_equal(converse(&engine, 6), &expected, name);
        lost += engine.stats().evictions;
    }
    assert!(lost > 0, "blocks are enough: only a lost state evicts");
}

#[test]
fn a_hybrid_is_no_draft_model() {
    let speculate = Speculate::Draft { model: hybrid(), always: true };
    let config = EngineConfig { speculate, ..large(PolicyKind::Fcfs) };
    let error = Engine::new(model(), config).err().expect("a refusal");
    assert!(error.to_string().contains("gated delta nets"), "{error}");
}
