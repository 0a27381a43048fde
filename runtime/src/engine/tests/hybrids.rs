//! Hybrids: answers are those of each request alone, whatever becomes of recurrent states.

use super::prefix::{Answer, converse, large};
use super::speculation::assert_equal;
use super::*;
use crate::backend::{Backend, DraftModel, Sampled, Scored, Step};
use crate::cpu::CpuBackend;
use crate::engine::{Fault, Speculate, Stats};
use crate::model::{DeltaNetConfig, ModelConfig};

/// Gated delta nets in the first and the last of three layers.
fn hybrid() -> Arc<Model> {
    let config = ModelConfig::named("qwen3.5-0.8b").expect("a known shape");
    let tiny = ModelConfig::named("tiny").expect("a known shape");
    let delta_net = DeltaNetConfig {
        layers: vec![0, 2],
        key_heads: 2,
        value_heads: 4,
        key_dim: 8,
        value_dim: 16,
        taps: 4,
    };
    let config = ModelConfig {
        architecture: config.architecture,
        delta_net: Some(delta_net),
        num_layers: 3,
        rotary_dim: Some(8),
        windows: vec![None; 3],
        ..tiny
    };
    Arc::new(Model::random_of(config, Dtype::Bf16, 8).expect("a small model"))
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
        let level = |bit: usize| at / 4 >> bit & 1 == 1;
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
    assert!(seen.evictions > 0 && seen.accepted_tokens > 0, "{seen:?}");
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
