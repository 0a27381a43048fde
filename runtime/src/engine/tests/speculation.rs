//! Speculation: answers, log probabilities and predictions are those without it.

use super::prefix::{Answer, collect, converse, large, plain, without_counts};
use super::*;
use crate::cpu::KvPool;
use crate::engine::{ComputeDevice, Speculate, Stats};
use crate::model::ModelConfig;

/// Tokens and log probabilities are equal. A prediction may be missing, as a step has one at the
/// most; those that are there are equal.
pub(super) fn assert_equal(answers: Vec<Answer>, expected: &[Answer], what: &str) {
    assert_eq!(answers.len(), expected.len());
    for answer in &answers {
        // One for the prompt and one for each later step, at least.
        let steps = answer.tokens.len() - answer.accepted_tokens as usize;
        assert!(answer.predictions.len() >= steps, "{what}: {answer:?}");
    }
    for (mut answer, expected) in without_counts(answers).into_iter().zip(expected) {
        for (age, bits) in std::mem::take(&mut answer.predictions) {
            assert_eq!(expected.predictions.get(&age), Some(&bits), "{what}, after {age} tokens");
        }
        let predictions = expected.predictions.clone();
        assert_eq!(&Answer { predictions, ..answer }, expected, "{what}");
    }
}

/// A draft model of one layer.
fn smaller(max_context: usize) -> Arc<Model> {
    let config = ModelConfig { num_layers: 1, windows: vec![None], ..model().config.clone() };
    let config = ModelConfig { max_context, ..config };
    Arc::new(Model::random_of(config, Dtype::Bf16, 9).expect("a small model"))
}

fn drafting(model: Arc<Model>) -> Speculate {
    Speculate::Draft { model, always: true }
}

fn answers_are_those_without_speculation(speculate: &Speculate, is_right: impl Fn(&Stats) -> bool) {
    let model = model();
    let expected = converse(&engine(&model, plain()), 6);
    for (name, _) in PolicyKind::HELP {
        let policy: PolicyKind = name.parse().unwrap();
        for (kv_blocks, no_prefix_cache, rows) in
            [(14, false, 512), (400, true, 12), (400, false, 512)]
        {
            let config = EngineConfig {
                kv_blocks: Some(kv_blocks),
                no_prefix_cache,
                token_budget: Some(rows),
                speculate: speculate.clone(),
                cpu: CpuSettings { threads: Some(2), ..CpuSettings::default() },
                // Policies rank by the probe or by nothing.
                replays: true,
                ..config(&model, policy)
            };
            let engine = engine(&model, config);
            let answers = converse(&engine, 6);
            let stats = engine.stats();
            let accepted: u32 = answers.iter().map(|answer| answer.accepted_tokens).sum();
            assert_eq!(u64::from(accepted), stats.accepted_tokens);
            assert!(is_right(&stats), "{name}, {kv_blocks} blocks: {stats:?}");
            assert_equal(answers, &expected, &format!("{name}, {kv_blocks} blocks"));
        }
    }
}

#[test]
fn answers_are_those_without_prompt_lookup_under_every_policy() {
    answers_are_those_without_speculation(&Speculate::Ngram, |stats| stats.accepted_tokens > 0);
}

#[test]
fn answers_are_those_without_a_draft_model_under_every_policy() {
    let speculate = drafting(smaller(model().config.max_context));
    answers_are_those_without_speculation(&speculate, |stats| {
        stats.draft_tokens > 0 && stats.accepted_tokens < stats.draft_tokens
    });
}

/// The model as its own draft: each token that it proposes is the one sampled, greedy or not, after
/// evictions and in shared blocks too. One row of stale KV would show.
#[test]
fn a_draft_model_that_agrees_is_always_right() {
    answers_are_those_without_speculation(&drafting(model()), |stats| {
        stats.draft_tokens > 0 && stats.accepted_tokens == stats.draft_tokens
    });
}

/// Where it pays: by measured times, which differ from run to run, and the answers do not.
#[test]
fn answers_are_those_without_speculation_where_it_pays() {
    let model = model();
    let expected = converse(&engine(&model, plain()), 6);
    let draft = Speculate::Draft { model: smaller(model.config.max_context), always: false };
    for speculate in [Speculate::Auto, draft] {
        let config = EngineConfig { speculate, ..large(PolicyKind::Fcfs) };
        assert_equal(converse(&engine(&model, config), 6), &expected, "where it pays");
    }
}

/// A repetition is proposed whole: it takes fewer steps than tokens, and ends where it must.
#[test]
fn a_repetition_takes_few_steps_and_ends_at_its_length_and_at_a_stop_token() {
    let model = model();
    let prompt: Vec<u32> = (0..40).map(|at| at % 4 + 5).collect();
    let ends = |speculate, stop: Option<u32>| {
        let engine = engine(&model, EngineConfig { speculate, ..large(PolicyKind::Fcfs) });
        let mut request = Request { ignore_eos: true, ..Request::new(prompt.clone(), 60) };
        request.sampling.temperature = 0.0;
        request.stop_tokens.extend(stop);
        let answer = collect(&engine.submit(request).unwrap());
        empty(&engine);
        (answer.tokens, engine.stats())
    };
    let (tokens, plain) = ends(Speculate::Off, None);
    let (again, stats) = ends(Speculate::Ngram, None);
    assert_eq!((&again, again.len()), (&tokens, 60));
    assert!((59..=60).contains(&plain.steps), "{plain:?}");
    // The last step may not be counted yet.
    assert!((59..=60).contains(&(stats.steps + stats.accepted_tokens)), "{stats:?}");
    assert!(stats.steps < 50, "{stats:?}");
    for stop in &tokens[30..40] {
        assert_eq!(ends(Speculate::Ngram, Some(*stop)).0, ends(Speculate::Off, Some(*stop)).0);
    }
}

/// The expected text goes wrong after some tokens, and again at each later try.
#[test]
fn wrong_tokens_are_rejected() {
    let model = model();
    let mut request = Request { ignore_eos: true, ..Request::new((0..40).collect(), 80) };
    request.sampling.temperature = 0.0;
    let plain = collect(&engine(&model, plain()).submit(request.clone()).unwrap());
    request.expected = [&plain.tokens[..20], &[3; 12]].concat();
    let config = EngineConfig { speculate: Speculate::Ngram, ..large(PolicyKind::Fcfs) };
    let engine = engine(&model, config);
    let answer = collect(&engine.submit(request).unwrap());
    let stats = engine.stats();
    assert!(stats.draft_tokens > stats.accepted_tokens + 10, "{stats:?}");
    assert_equal(vec![answer], &[plain], "wrong tokens");
}

/// Requests that leave at any time, draft tokens and all, take nothing from the others.
#[test]
fn the_cancelled_leave_no_draft_tokens() {
    let model = model();
    let policy = PolicyKind::trail(1.0);
    let plain = EngineConfig { speculate: Speculate::Off, ..config(&model, policy) };
    let expected = answers(&engine(&model, plain));
    for round in 0..9 {
        let speculate = drafting(smaller(model.config.max_context));
        let engine = engine(&model, EngineConfig { speculate, ..config(&model, policy) });
        let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
        for (i, handle) in handles.into_iter().enumerate() {
            if i % 3 == round % 3 {
                assert_eq!(answer(handle), expected[i], "request {i}");
            } else {
                (0..round).for_each(|_| {
                    handle.try_recv();
                });
                drop(handle);
            }
        }
        empty(&engine);
        assert_eq!(engine.stats().blocks_used, 0, "round {round}");
    }
}

/// Past the context of the draft model nothing is proposed.
#[test]
fn a_draft_model_of_a_short_context_drafts_to_its_end() {
    let model = model();
    let request = Request { ignore_eos: true, ..Request::new((0..20).collect(), 60) };
    let plain = collect(&engine(&model, plain()).submit(request.clone()).unwrap());
    let drafts = |max_context| {
        let speculate = drafting(smaller(max_context));
        let engine = engine(&model, EngineConfig { speculate, ..large(PolicyKind::Fcfs) });
        let answer = collect(&engine.submit(request.clone()).unwrap());
        assert_equal(vec![answer], std::slice::from_ref(&plain), "a short context");
        engine.stats().draft_tokens
    };
    let [short, long] = [40, 80].map(drafts);
    assert!(short > 10 && short < long, "{short} of {long}");
    assert_eq!(drafts(21), 0);
}

#[test]
fn a_draft_model_of_another_vocabulary_and_one_for_a_gpu_are_refused() {
    let model = model();
    let config = ModelConfig { vocab_size: 100, ..model.config.clone() };
    let other = Arc::new(Model::random_of(config, Dtype::Bf16, 9).unwrap());
    let refused = |speculate, device| {
        let config = EngineConfig { speculate, device, ..large(PolicyKind::Fcfs) };
        let error = Engine::new(model.clone(), EngineConfig { probe: None, ..config });
        error.err().expect("a refusal").to_string()
    };
    let vocabulary = refused(drafting(other), ComputeDevice::Cpu);
    assert!(vocabulary.contains("draft model has 100 tokens, the model's"), "{vocabulary}");
    let device = refused(drafting(model.clone()), ComputeDevice::Cuda { ordinal: 0 });
    assert!(device.starts_with("--speculate draft:PATH is for the CPU"), "{device}");
}

/// A block of the pool has the KV of both models.
#[test]
fn blocks_are_sized_for_both_models() {
    let model = model();
    let bytes = |speculate| {
        EngineConfig { speculate, ..large(PolicyKind::Fcfs) }.kv_block_bytes(&model.config)
    };
    let own = KvPool::bytes_of_block(&model.config, Dtype::F32);
    assert_eq!(bytes(Speculate::Off), own);
    let (draft, layers) = (smaller(80), model.config.num_layers);
    assert_eq!(bytes(drafting(draft)), own + own / layers);
}
