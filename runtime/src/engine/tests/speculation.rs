//! Speculation: answers, log probabilities and predictions are those without it.

use std::collections::BTreeSet;

use super::prefix::{Answer, collect, converse, large, plain, without_counts};
use super::*;
use crate::engine::Speculate;

/// Tokens and log probabilities are equal. A prediction may be missing, as a step has one at the
/// most; those that are there are equal.
fn assert_equal(answers: Vec<Answer>, expected: &[Answer], what: &str) {
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

#[test]
fn answers_are_those_without_speculation_under_every_policy() {
    let model = model();
    let expected = converse(&engine(&model, plain()), 6);
    for (name, _) in PolicyKind::HELP {
        let policy: PolicyKind = name.parse().unwrap();
        for (kv_blocks, no_prefix_cache) in [(14, false), (400, true)] {
            let config = EngineConfig {
                kv_blocks: Some(kv_blocks),
                no_prefix_cache,
                speculate: Speculate::Ngram,
                // Policies rank by the probe or by nothing.
                replays: true,
                ..config(&model, policy)
            };
            let engine = engine(&model, config);
            let answers = converse(&engine, 6);
            let stats = engine.stats();
            let accepted: u32 = answers.iter().map(|answer| answer.accepted_tokens).sum();
            assert_eq!(u64::from(accepted), stats.accepted_tokens);
            assert!(accepted > 0, "{name}");
            assert_equal(answers, &expected, &format!("{name}, {kv_blocks} blocks"));
        }
    }
}

/// Where it pays: by measured times, which differ from run to run, and the answers do not.
#[test]
fn answers_are_those_without_speculation_where_it_pays() {
    let model = model();
    let expected = converse(&engine(&model, plain()), 6);
    let config = EngineConfig { speculate: Speculate::Auto, ..large(PolicyKind::Fcfs) };
    assert_equal(converse(&engine(&model, config), 6), &expected, "auto");
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

/// The model that the engine runs, as a smaller one of the same vocabulary, and as one that agrees
/// with it in everything.
fn draft(same: bool, always: bool) -> Speculate {
    let smaller = ModelConfig { hidden_size: 64, num_layers: 1, ..model().config.clone() };
    let smaller = ModelConfig { windows: vec![None], ..smaller };
    let smaller = || Arc::new(Model::random_of(smaller, Dtype::Bf16, 9).expect("a small model"));
    Speculate::Draft { model: if same { model() } else { smaller() }, always }
}
