//! The predictors against their formulae.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::bins::{Bins, MAX_BINS};
use crate::file::{Common, Storage, serialize};

fn bag(bins: Bins, vocab: usize, weight: &[f32], bias: &[f32]) -> Predictor {
    let layers = vec![Layer::new(weight, bias)];
    Predictor::new(Features::BagOfTokens { vocab }, Output::Bins(Box::new(bins)), layers)
}

fn predictor() -> Predictor {
    // Token 0 is evidence for the first bin, token 2 for the second.
    bag(Bins::equal(2, 100), 3, &[2.0, 0.0, 0.0, 0.0, 0.0, 3.0], &[0.5, 0.0])
}

fn predicted(predictor: &dyn LengthPredictor, ids: &[u32]) -> Prediction {
    predictor.predict(&Prompt::new(ids)).expect("a prediction")
}

#[test]
fn counts_enter_by_their_logarithm() {
    let prompt = [2, 0, 1, 2, 0, 2];
    let logits = [0.5 + 2.0 * 3f64.ln(), 3.0 * 4f64.ln()];
    let second = 1.0 / (1.0 + (logits[0] - logits[1]).exp());
    let expected = 25.0 * (1.0 - second) + 75.0 * second;
    assert!((f64::from(predicted(&predictor(), &prompt).mean()) - expected).abs() < 1e-4);
    assert_eq!(predicted(&predictor(), &prompt).likeliest(), 75.0);
    let length = Layer::new(&[10.0], &[1.0]);
    let of_length = Predictor::new(Features::PromptLength, Output::Tokens, vec![length]);
    assert_eq!(predicted(&of_length, &prompt), Prediction::Tokens((1.0 + 10.0 * 7f64.ln()) as f32));
}

#[test]
fn the_countdown_point_has_the_least_error_over_all_tokens() {
    // Token by token, for lengths 25 and 75 with probability p of the latter.
    let error = |predicted: f32, p: f32| -> f32 {
        let of = |length: f32| -> f32 {
            (0..length as u32)
                .map(|g| ((predicted - g as f32).max(0.0) - (length - g as f32)).abs())
                .sum()
        };
        (1.0 - p) * of(25.0) + p * of(75.0)
    };
    for prompt in [&[][..], &[2], &[0], &[2, 2], &[0, 0, 0, 2]] {
        let prediction = predicted(&predictor(), prompt);
        let Prediction::Bins { q, .. } = &prediction else { panic!("{prediction:?}") };
        let want = if error(25.0, q[1]) < error(75.0, q[1]) { 25.0 } else { 75.0 };
        assert_eq!(prediction.countdown_optimal(), want, "{prompt:?}: {}", q[1]);
    }
    // Of ten answers three or four are long: the likeliest length is 25, the countdown's 75.
    let likely_short = bag(Bins::equal(2, 100), 1, &[0.0; 2], &[0.6, 0.0]);
    assert_eq!(predicted(&likely_short, &[]).likeliest(), 25.0);
    assert_eq!(predicted(&likely_short, &[]).countdown_optimal(), 75.0);
}

/// Says nothing, and true of every question.
struct Slow;

impl LengthPredictor for Slow {
    fn predict(&self, _prompt: &Prompt<'_>) -> Option<Prediction> {
        None
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn needs_probe(&self) -> bool {
        true
    }

    fn failures(&self) -> u64 {
        7
    }
}

#[test]
fn a_hint_is_what_the_predictor_behind_it_is() {
    let of = |otherwise: Option<Arc<dyn LengthPredictor>>| {
        let hint = Hint { otherwise };
        assert!(hint.reads_hint());
        (hint.is_slow(), hint.needs_probe(), hint.failures())
    };
    assert_eq!(of(Some(Arc::new(Slow))), (true, true, 7));
    assert_eq!(of(Some(Arc::new(PromptLength))), (false, false, 0));
    assert_eq!(of(None), (false, false, 0));
}

#[test]
fn order_and_foreign_ids_do_not_matter() {
    let predictor = predictor();
    assert_eq!(predicted(&predictor, &[0, 2, 2]), predicted(&predictor, &[2, 3, 0, u32::MAX, 2]));
    assert_eq!(predicted(&predictor, &[]).likeliest(), 25.0);
}

#[test]
fn huge_weights_give_a_finite_answer() {
    let predictor = bag(Bins::equal(2, 100), 1, &[f32::MAX, f32::MAX], &[f32::MAX, f32::MIN]);
    assert_eq!(predicted(&predictor, &[0; 9]).mean(), 25.0);
    let huge = || Layer::new(&[f32::MAX], &[f32::MAX]);
    let layers = (0..MAX_BINS).map(|_| huge()).collect();
    let deep = Predictor::new(Features::PromptLength, Output::Tokens, layers);
    assert!(predicted(&deep, &[0]).mean().is_finite());
}

#[test]
fn layers_follow_one_another_with_relu_between() {
    let first = Layer::new(&[1.0, 2.0, -1.0, 0.5], &[0.0, 0.25]);
    let second = Layer::new(&[3.0, -4.0], &[10.0]);
    let features = Features::Encoder { width: 2, encoder: "e".into(), pooling: Pooling::Cls };
    let predictor = Predictor::new(features, Output::Tokens, vec![first, second]);
    // Hidden: 1 + 4 = 5, and -1 + 1 + 0.25.
    assert_eq!(predictor.of_embedding(&[1.0, 2.0]), Prediction::Tokens(10.0 + 15.0 - 1.0));
    // Hidden: both below zero.
    assert_eq!(predictor.of_embedding(&[1.0, -2.0]), Prediction::Tokens(10.0));
    assert_eq!(predictor.predict(&Prompt::new(&[1])), None, "an encoder reads text");
}

#[test]
fn a_scale_keeps_the_order_of_scores() {
    let scale = RankScale::new(vec![-1.0, 0.0, 3.0], vec![20.0, 50.0, 80.0]).expect("a scale");
    assert_eq!(
        [-1.0, -0.5, 0.0, 1.5, 3.0, 4.0].map(|score| scale.tokens(score)),
        [20.0, 35.0, 50.0, 65.0, 80.0, 90.0]
    );
    let scores: Vec<f64> = (0..200).map(|at| at as f64 * 0.05 - 5.0).collect();
    for pair in scores.windows(2) {
        assert!(scale.tokens(pair[0]) < scale.tokens(pair[1]), "{pair:?}");
    }
    assert!(scale.tokens(f64::MAX).is_finite() && scale.tokens(f64::MIN) >= 0.0);
    for (scores, lengths) in [
        (vec![0.0], vec![1.0]),
        (vec![0.0, 0.0], vec![1.0, 2.0]),
        (vec![0.0, 1.0], vec![2.0, 2.0]),
        (vec![0.0, f32::NAN], vec![1.0, 2.0]),
        (vec![0.0, 1.0], vec![0.0, 2.0]),
        (vec![0.0, 1.0, 2.0], vec![1.0, 2.0]),
    ] {
        assert!(RankScale::new(scores, lengths).is_err());
    }
}

#[test]
fn predictors_that_learn_nothing() {
    assert_eq!(predicted(&Constant(40.0), &[1, 2]), Prediction::Tokens(40.0));
    assert_eq!(predicted(&PromptLength, &[1, 2, 3]), Prediction::Tokens(3.0));
    assert_eq!(predicted(&PromptLength, &[]), Prediction::Tokens(1.0));
    let hinted = Prompt { ids: &[1], hint: Some(7) };
    let hint = Hint { otherwise: None };
    assert_eq!(hint.predict(&hinted), Some(Prediction::Tokens(7.0)));
    assert_eq!(hint.predict(&Prompt::new(&[1])), None);
    let hint = Hint { otherwise: Some(Arc::new(Constant(9.0))) };
    assert_eq!(hint.predict(&hinted), Some(Prediction::Tokens(7.0)));
    assert_eq!(hint.predict(&Prompt::new(&[1])), Some(Prediction::Tokens(9.0)));
    assert!(PromptProbe.needs_probe() && PromptProbe.predict(&hinted).is_none());
}

#[test]
fn survives_the_file() {
    let values = |count: usize| -> Vec<f32> { (0..count).map(|at| at as f32 / 8.0).collect() };
    let encoder = |pooling| Features::Encoder { width: 3, encoder: "e5".into(), pooling };
    let scale = RankScale::new(vec![0.0, 1.0], vec![5.0, 9.5]).expect("a scale");
    let deep = [(4, 3), (4, 4), (1, 4)]
        .map(|(rows, inputs)| Layer::new(&values(rows * inputs), &values(rows)));
    let one = || vec![Layer::new(&values(3), &[0.5])];
    let predictors = [
        bag(Bins::log(2, 100), 3, &values(6), &[0.1, -0.1]),
        Predictor::new(Features::BagOfTokens { vocab: 3 }, Output::Score(scale), one()),
        Predictor::new(encoder(Pooling::Mean), Output::Tokens, one()),
        Predictor::new(encoder(Pooling::Cls), Output::Tokens, deep.into()),
        Predictor::new(Features::PromptLength, Output::Tokens, vec![Layer::new(&[2.0], &[0.0])]),
    ];
    for mut predictor in predictors {
        predictor.model = Some("a model".into());
        predictor.record.insert("l2".into(), "0.001".into());
        for storage in [Storage::F32, Storage::Bf16] {
            let loaded = Predictor::from_bytes(&predictor.to_bytes(storage), "p").unwrap();
            assert_eq!(loaded, predictor);
        }
        let bytes = predictor.to_bytes(Storage::F32);
        for end in 0..bytes.len() {
            assert!(Predictor::from_bytes(&bytes[..end], "p").is_err());
        }
        let error = crate::file::Probe::from_bytes(&bytes, "p").err().unwrap().to_string();
        assert_eq!(
            error,
            "p: metadata format: expected \"trail-probe\", found \"trail-prompt-predictor\""
        );
    }
}

#[test]
fn a_file_has_the_weights_of_the_tokens_that_were_seen() {
    let vocab = 300;
    let mut weight = vec![0.0; 2 * vocab];
    (weight[7], weight[vocab + 7], weight[vocab + 299]) = (1.5, -2.0, 0.25);
    let seen = bag(Bins::equal(2, 100), vocab, &weight, &[0.5, 0.0]);
    let bytes = seen.to_bytes(Storage::Bf16);
    assert!(bytes.len() < vocab * 2, "{}", bytes.len());
    assert_eq!(Predictor::from_bytes(&bytes, "p").unwrap(), seen);
    let version = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        ["\"version\":\"2\"", "\"version\":\"3\""].map(|version| text.contains(version))
    };
    assert_eq!(version(&bytes), [false, true]);
    assert_eq!(version(&predictor().to_bytes(Storage::Bf16)), [true, false], "all are seen");

    let ids = [7.0_f32, 299.0].map(f32::to_le_bytes).concat();
    let at = bytes.windows(8).position(|of| of == ids).expect("the ids");
    for other in [300.0, 6.0, 8.5, -1.0, 7.0] {
        let mut damaged = bytes.clone();
        damaged[at + 4..at + 8].copy_from_slice(&f32::to_le_bytes(other));
        let error = Predictor::from_bytes(&damaged, "p").expect_err("refused").to_string();
        assert!(error.starts_with("p: tokens: expected ascending ids"), "{other}: {error}");
    }
}

/// A file of kilobytes could ask for a layer of terabytes.
#[test]
fn a_file_of_several_layers_has_the_weights_of_all_tokens() {
    let tensors: [(&str, &[usize], &[f32]); 5] = [
        ("layers.0.weight", &[2, 1], &[1.0; 2]),
        ("layers.0.bias", &[2], &[0.0; 2]),
        ("layers.1.weight", &[1, 2], &[1.0; 2]),
        ("layers.1.bias", &[1], &[0.0]),
        ("tokens", &[1], &[7.0]),
    ];
    let own = [("vocab_size", "300".to_owned()), ("output", "tokens".to_owned())];
    let (format, record) = ("trail-prompt-predictor", &BTreeMap::new());
    let common = Common { format, version: 3, bins: None, model: None, record };
    let bytes = serialize(common, &own, &tensors, Storage::F32);
    let error = Predictor::from_bytes(&bytes, "p").expect_err("refused").to_string();
    assert_eq!(error, "p: tokens: expected one layer, found 2 layers");
}

#[test]
fn a_damaged_file_is_refused_by_its_part() {
    let mut predictor = predictor();
    predictor.record.insert("lengths".into(), "x".into());
    let text = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let bytes = predictor.to_bytes(Storage::F32);
        let at = bytes.windows(from.len()).position(|of| of == from.as_bytes()).expect("there");
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        Predictor::from_bytes(&changed, "p").err().map(|error| error.to_string())
    };
    let refused = |from, to, why: &str| {
        let error = text(from, to).expect("refused");
        assert!(error.contains(why) && error.lines().count() == 1, "{error}");
    };
    refused("bag-of-tokens", "bag-of-wokens", "metadata features");
    refused("\"output\":\"bins\"", "\"output\":\"bars\"", "metadata output");
    refused("vocab_size\":\"3\"", "vocab_size\":\"4\"", "weight");
}

#[test]
fn the_bundled_predictor_is_of_the_first_version() {
    let bundled = include_bytes!("../../../assets/demo/predictor.safetensors");
    let read = Predictor::from_bytes(bundled, "p").unwrap();
    assert_eq!(read.features, Features::BagOfTokens { vocab: 1024 });
    assert_eq!((&read.output, &read.model), (&Output::Bins(Box::default()), &None));
    assert_eq!(read.record["l2"], "0.001");
}
