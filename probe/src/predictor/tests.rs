//! The predictor against its formula.

use super::*;

fn predictor() -> Predictor {
    let bins = Bins::equal(2, 100);
    // Token 0 is evidence for the first bin, token 2 for the second.
    Predictor::new(bins, 3, &[2.0, 0.0, 0.0, 0.0, 0.0, 3.0], &[0.5, 0.0])
}

#[test]
fn counts_enter_by_their_logarithm() {
    let prompt = [2, 0, 1, 2, 0, 2];
    let logits = [0.5 + 2.0 * 3f64.ln(), 3.0 * 4f64.ln()];
    let second = 1.0 / (1.0 + (logits[0] - logits[1]).exp());
    let expected = 25.0 * (1.0 - second) + 75.0 * second;
    assert!((f64::from(predictor().predict(&prompt)) - expected).abs() < 1e-4);
    assert_eq!(predictor().predict_midpoint(&prompt), 75.0);
}

#[test]
fn the_countdown_point_has_the_least_error_over_all_tokens() {
    // Token by token, for lengths 25 and 75 with probability p of the latter.
    let error = |said: f32, p: f32| -> f32 {
        let of = |length: f32| -> f32 {
            (0..length as u32)
                .map(|g| ((said - g as f32).max(0.0) - (length - g as f32)).abs())
                .sum()
        };
        (1.0 - p) * of(25.0) + p * of(75.0)
    };
    let predictor = predictor();
    for prompt in [&[][..], &[2], &[0], &[2, 2], &[0, 0, 0, 2]] {
        let p = predictor.probabilities(prompt)[1];
        let want = if error(25.0, p) < error(75.0, p) { 25.0 } else { 75.0 };
        assert_eq!(predictor.predict_countdown(prompt), want, "{prompt:?}: {p}");
    }
    // Of ten answers three or four are long: the likeliest length is 25, the countdown's 75.
    let likely_short = Predictor::new(Bins::equal(2, 100), 1, &[0.0; 2], &[0.6, 0.0]);
    assert_eq!(likely_short.predict_midpoint(&[]), 25.0);
    assert_eq!(likely_short.predict_countdown(&[]), 75.0);
}

#[test]
fn order_and_foreign_ids_do_not_matter() {
    let predictor = predictor();
    assert_eq!(predictor.predict(&[0, 2, 2]), predictor.predict(&[2, 3, 0, u32::MAX, 2]));
    assert_eq!(predictor.predict_midpoint(&[]), 25.0);
}

#[test]
fn huge_weights_give_a_finite_answer() {
    let bins = Bins::equal(2, 100);
    let predictor = Predictor::new(bins, 1, &[f32::MAX, f32::MAX], &[f32::MAX, f32::MIN]);
    assert_eq!(predictor.predict(&[0; 9]), 25.0);
}

#[test]
fn survives_the_file() {
    let (bins, bias) = (Bins::log(2, 100), [0.1, -0.1]);
    let weight: Vec<f32> = (0..6).map(|at| at as f32 / 8.0).collect();
    let mut predictor = Predictor::new(bins, 3, &weight, &bias);
    predictor.model = Some("a model".into());
    predictor.record.insert("l2".into(), "0.001".into());
    for storage in [Storage::F32, Storage::Bf16] {
        let loaded = Predictor::from_bytes(&predictor.to_bytes(storage), "p").unwrap();
        assert_eq!((loaded.bins, loaded.vocab), (bins, 3));
        assert_eq!((&loaded.weight, &loaded.bias), (&predictor.weight, &predictor.bias));
        assert_eq!((&loaded.model, &loaded.record), (&predictor.model, &predictor.record));
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

#[test]
fn the_bundled_predictor_is_of_the_first_version() {
    let bundled = include_bytes!("../../../assets/demo/predictor.safetensors");
    let read = Predictor::from_bytes(bundled, "p").unwrap();
    assert_eq!((read.bins, read.vocab, &read.model), (Bins::default(), 1024, &None));
    assert_eq!(read.record["l2"], "0.001");
}
