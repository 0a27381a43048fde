//! The predictor against its formula.

use super::*;

fn predictor() -> Predictor {
    let bins = Bins { count: 2, max_tokens: 100 };
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
fn order_and_foreign_ids_do_not_matter() {
    let predictor = predictor();
    assert_eq!(predictor.predict(&[0, 2, 2]), predictor.predict(&[2, 3, 0, u32::MAX, 2]));
    assert_eq!(predictor.predict_midpoint(&[]), 25.0);
}

#[test]
fn huge_weights_give_a_finite_answer() {
    let bins = Bins { count: 2, max_tokens: 100 };
    let predictor = Predictor::new(bins, 1, &[f32::MAX, f32::MAX], &[f32::MAX, f32::MIN]);
    assert_eq!(predictor.predict(&[0; 9]), 25.0);
}

#[test]
fn survives_the_file() {
    let (bins, weight, bias) = (Bins { count: 2, max_tokens: 100 }, [1.0; 6], [0.0; 2]);
    let bytes = Predictor::file_bytes(bins, 3, &weight, &bias);
    let loaded = Predictor::from_bytes(&bytes, "p").unwrap();
    assert_eq!((loaded.bins, loaded.vocab, loaded.weight), (bins, 3, weight.to_vec()));
    for end in 0..bytes.len() {
        assert!(Predictor::from_bytes(&bytes[..end], "p").is_err());
    }
    let error = crate::file::Probe::from_bytes(&bytes, "p").err().unwrap().to_string();
    assert_eq!(
        error,
        "p: metadata format: expected \"trail-probe\", found \"trail-prompt-predictor\""
    );
}
