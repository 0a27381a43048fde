//! Tests of what is learned.

use std::time::{Duration, Instant};

use trail_probe::predictor::{Layer, Output};

use super::super::features::VOCAB;
use super::*;

fn features(text: &str) -> Features {
    let mut features = Features::default();
    features.add_text(text);
    features
}

fn lengths(
    train: impl Fn(&[Example]) -> Option<Predictor> + Send + Sync + 'static,
) -> Arc<Lengths> {
    Arc::new(Lengths::open(Arc::new(train), None).expect("no file"))
}

/// A predictor of as many tokens as there were answers.
fn of_count(examples: &[Example]) -> Option<Predictor> {
    let layer = Layer::new(&vec![0.0; VOCAB], &[examples.len() as f32]);
    Some(Predictor::new(Features::kind(), Output::Tokens, vec![layer]))
}

#[test]
fn the_mean_is_expected_until_there_are_answers_to_learn_from() {
    let (lengths, prompt) = (lengths(of_count), features("a prompt"));
    let none = Predicted { tokens: None, rank_tokens: None, by_prompt: false };
    assert_eq!(lengths.predict(&prompt, None), none);
    for at in 0..FEWEST - 1 {
        lengths.learn(&prompt, none, 10 + 20 * (at % 2) as u32);
        assert!(!lengths.standing().trusted);
    }
    let mean = lengths.predict(&prompt, None).tokens.expect("a mean");
    assert!((19.0..21.0).contains(&mean), "{mean}");
    assert_eq!(lengths.predict(&prompt, Some(7)).tokens, Some(7.0));
    lengths.learn(&prompt, none, 10);
    let start = Instant::now();
    while !lengths.predict(&prompt, None).by_prompt {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not trained");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(lengths.predict(&prompt, None).tokens, Some(FEWEST as f32));
    assert!(lengths.standing().trusted);
}

#[test]
fn predictions_are_trusted_while_they_order_answers() {
    let (lengths, prompt) = (lengths(|_| None), features("a prompt"));
    let learn = |sign: f32, count: u32| {
        for at in 0..count {
            let tokens = Some(500.0 + sign * (at * 37 % 101) as f32);
            let predicted = Predicted { tokens, rank_tokens: tokens, by_prompt: true };
            lengths.learn(&prompt, predicted, 1 + at * 37 % 101);
        }
        lengths.standing()
    };
    assert!(!learn(1.0, FEWEST_JUDGED as u32 - 1).trusted, "too few");
    let standing = learn(1.0, 64);
    assert!(standing.trusted && standing.tau > 0.9, "{standing:?}");
    let standing = learn(-1.0, WINDOW as u32);
    assert!(!standing.trusted && standing.tau < -0.9, "{standing:?}");
    assert!(learn(1.0, WINDOW as u32).trusted);
}

/// Expectations of 100 to 199 for lengths of 1 to 1000.
#[test]
fn ranks_differ_as_much_as_lengths_do() {
    let (lengths, prompt) = (lengths(|_| None), features("a prompt"));
    assert_eq!(lengths.state().spread(150.0), 150.0, "too few");
    for at in 0..100 {
        let tokens = Some((100 + at) as f32);
        let predicted = Predicted { tokens, rank_tokens: tokens, by_prompt: true };
        lengths.learn(&prompt, predicted, 1 + 10 * at);
    }
    let spread = [50.0, 100.0, 150.0, 199.0, 500.0].map(|of| lengths.state().spread(of));
    assert_eq!(spread, [1.0, 1.0, 501.0, 991.0, 991.0]);
}

/// Prompts of as many different words as a feature's hash has buckets.
#[test]
fn what_is_kept_of_long_prompts_is_bounded() {
    let lengths = lengths(|_| None);
    let long = || (0..VOCAB as u32).map(|word| (word, 1.0)).collect::<Vec<_>>();
    let mut state = lengths.state();
    let max = KEPT_INPUTS / VOCAB;
    for at in 0..max as u32 + 10 {
        state.keep((long(), at));
    }
    assert_eq!((state.examples.len(), state.examples[0].1), (max, 10));
    (0..KEPT).for_each(|_| state.keep((vec![(1, 1.0)], 0)));
    assert_eq!((state.examples.len(), state.inputs), (KEPT, KEPT));
}
