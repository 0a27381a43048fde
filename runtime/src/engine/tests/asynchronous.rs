//! Prefix cache and speculation over a backend whose tokens come a step late, and which swaps:
//! answers are those of one that computes every token alone.

use super::prefix::{Answer, converse, large, plain, without_counts};
use super::*;
use crate::engine::Speculate;
use crate::engine::block_hashes::BlockHasher;

/// Answers are equal; a prediction may be missing, as one that is late may be passed over.
fn assert_equal(answers: Vec<Answer>, expected: &[Answer], swaps: bool, what: &str) {
    assert_eq!(answers.len(), expected.len());
    for (mut answer, expected) in without_counts(answers).into_iter().zip(expected) {
        let predictions = std::mem::take(&mut answer.predictions);
        // This backend does not move the sums of blocks that it swaps.
        for (age, bits) in predictions.into_iter().filter(|_| !swaps) {
            assert_eq!(expected.predictions.get(&age), Some(&bits), "{what}, after {age} tokens");
        }
        let predictions = expected.predictions.clone();
        assert_eq!(&Answer { predictions, ..answer }, expected, "{what}");
    }
}

#[test]
fn late_tokens_drafts_and_swaps_change_no_answer_under_any_policy() {
    let model = model();
    let expected = converse(&engine(&model, plain()), 6);
    let mut found_on_host = 0;
    for (name, _) in PolicyKind::HELP {
        let policy: PolicyKind = name.parse().unwrap();
        for (kv_blocks, preemption, speculate) in [
            (14, Preemption::Recompute, Speculate::Off),
            (14, Preemption::Recompute, Speculate::Ngram),
            (14, Preemption::Swap, Speculate::Ngram),
            (400, Preemption::Recompute, Speculate::Auto),
        ] {
            let always = matches!(speculate, Speculate::Ngram);
            let config = EngineConfig {
                kv_blocks: Some(kv_blocks),
                scheduler: preempting_by(preemption),
                replays: true,
                speculate,
                ..large(policy)
            };
            let engine = ahead(&model, config, None);
            let answers = converse(&engine, 6);
            let (hits, stats) = (answers.iter().map(|of| of.cached_tokens).sum(), engine.stats());
            let accepted: u32 = answers.iter().map(|of| of.accepted_tokens).sum();
            let what = format!("{name}, {kv_blocks} blocks, {preemption:?}, {always}");
            assert!(0_u32 < hits && stats.hash_collisions == 0, "{what}: {stats:?}");
            assert_eq!(u64::from(accepted), stats.accepted_tokens, "{what}");
            assert!(!always || accepted > 0, "{what}");
            assert_equal(answers, &expected, preemption == Preemption::Swap, &what);
            // Beyond those that return: the first blocks of others, which the host still had.
            found_on_host += stats.swaps_in - stats.swaps_out;
        }
    }
    assert!(found_on_host > 10, "{found_on_host}");
}

/// Hashes that collide, on the device and on the host.
#[test]
fn a_collision_on_the_host_serves_no_other_requests_tokens() {
    let model = model();
    let expected = converse(&engine(&model, plain()), 6);
    let config = EngineConfig {
        hasher: Some(BlockHasher::colliding()),
        scheduler: preempting_by(Preemption::Swap),
        kv_blocks: Some(14),
        ..large(PolicyKind::trail(1.0))
    };
    let engine = ahead(&model, config, None);
    assert_equal(converse(&engine, 6), &expected, true, "colliding");
    let stats = engine.stats();
    assert!(stats.hash_collisions > 10 && stats.swaps_out > 0, "{stats:?}");
}

/// Every step but the last has predictions, those with draft tokens too.
#[test]
fn predictions_come_with_every_step_that_has_draft_tokens() {
    let model = model();
    let config = EngineConfig { speculate: Speculate::Ngram, ..large(PolicyKind::Fcfs) };
    for answer in converse(&ahead(&model, config, None), 1) {
        let steps = answer.tokens.len() - answer.accepted_tokens as usize;
        assert!(answer.predictions.len() >= steps, "{answer:?}");
    }
}

/// As on the CPU: a turn finds the turn before, the blocks of its answer included, whose hashes
/// come after their steps.
#[test]
fn a_turn_finds_the_answer_before_as_where_tokens_are_not_late() {
    let model = model();
    let cached = |engine: &Engine| -> Vec<u32> {
        converse(engine, 1).iter().map(|answer| answer.cached_tokens).collect()
    };
    let found = cached(&ahead(&model, large(PolicyKind::Fcfs), None));
    assert_eq!(found, cached(&engine(&model, large(PolicyKind::Fcfs))));
    assert!(found[2] > found[1] && found[1] > 0, "{found:?}");
}
