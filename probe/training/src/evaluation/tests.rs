use trail_probe::Bins;

use super::*;

/// An answer of `tokens` tokens with `predicted(step, remaining)` as its predictions, in raw and
/// refined form, and the distribution of a probe that is certain of it.
fn trace(tokens: u32, bins: &Bins, predicted: impl Fn(u32, u32) -> f32) -> Trace {
    let predicted: Vec<f32> = (0..tokens).map(|step| predicted(step, tokens - step)).collect();
    let certain = |predicted: &f32| {
        let bin = bins.bin_of(*predicted as u32);
        (0..bins.count()).map(|other| if other == bin { 0.9 } else { 0.1 / 9.0 }).collect()
    };
    Trace {
        index: 0,
        prompt_tokens: 3,
        stopped: true,
        probabilities: predicted.iter().map(certain).collect(),
        raw: predicted.clone(),
        prompt_probe: predicted[0],
        length_predictor: None,
        same_bin: [0; 3],
        refined: predicted,
    }
}

#[test]
fn a_perfect_predictor_has_no_error_and_the_right_order() {
    let bins = Bins::default();
    let perfect = |tokens| trace(tokens, &bins, |_, remaining| remaining as f32);
    let traces: Vec<Trace> = [10, 100, 300, 500].map(perfect).into();
    let mae = maes(&traces, best_constant(&traces), |_, _| true);
    assert_eq!((mae.steps, mae.raw, mae.refined, mae.prompt_probe), (910, 0.0, 0.0, 0.0));
    assert!(mae.constant > 10.0 && mae.length_predictor.is_none());
    assert_eq!(bin_accuracy(&traces, &bins), 1.0);
    // Certain of 0.9, and always right.
    assert!((expected_calibration_error(&traces, &bins) - 0.1).abs() < 1e-6);
    assert!(tau_b(&traces, |trace, step| trace.refined[step]) > 0.999);
    assert_eq!(short_behind_long(&traces, |trace, step| trace.refined[step]), 0.0);
    assert!(tau_b(&traces, |trace, step| -trace.refined[step]) < -0.999);
    assert_eq!(short_behind_long(&traces, |trace, step| -trace.refined[step]), 1.0);
    let counts = heat_map(&traces, &bins, |trace, step| trace.refined[step]);
    let total: u64 = counts.iter().flatten().sum();
    let diagonal: u64 = (0..10).map(|bin| counts[bin][bin]).sum();
    assert_eq!((total, diagonal), (910, 910));
}

#[test]
fn errors_are_split_by_age() {
    let bins = Bins::default();
    // Wrong by 10 tokens up to step 4, right afterwards.
    let predicted = |step, remaining| remaining as f32 + if step <= 4 { 10.0 } else { 0.0 };
    let traces = [trace(100, &bins, predicted)];
    let of = |age: Age| maes(&traces, 0.0, |_, step| age.has(step));
    let all = AGES.map(of);
    assert_eq!(all.map(|mae| mae.steps), [1, 4, 12, 48, 35]);
    assert_eq!(all.map(|mae| mae.refined), [10.0, 10.0, 0.0, 0.0, 0.0]);
    assert_eq!(countdown(20.0, 5), 15.0);
    assert_eq!(countdown(20.0, 30), 1.0);
}

#[test]
fn the_best_constant_of_equal_answers_is_their_length() {
    let bins = Bins::default();
    let traces = [120, 120, 120].map(|tokens| trace(tokens, &bins, |_, _| 1.0));
    assert_eq!(best_constant(&traces), 120.0);
    assert_eq!(maes(&traces, 120.0, |_, _| true).constant, 0.0);
}

#[test]
fn reliability_compares_predicted_and_true_lengths() {
    let bins = Bins::default();
    let traces: Vec<Trace> =
        (0..20).map(|i| trace(100 + i, &bins, |_, remaining| remaining as f32 + 30.0)).collect();
    let all = reliability(&traces, &bins);
    assert!(all.iter().any(|one| one.age.name == "later"));
    for one in all {
        assert!((one.predicted - one.remained - 30.0).abs() < 1e-3, "{one:?}");
        assert!(one.standard_error < 1e-3 && one.requests > 0);
    }
}

#[test]
fn figures_of_predictions_from_the_prompt_alone() {
    let predicted = |tokens| trail_probe::Prediction::Tokens(tokens);
    let of = PromptOnly::of(&[(predicted(10.0), 20), (predicted(30.0), 10)]);
    assert_eq!((of.mae, of.rmse, of.tau_b), (15.0, 250.0_f64.sqrt(), -1.0));
    assert_eq!((of.r2, of.bin_accuracy), (1.0 - 250.0 / 25.0, None));
    // The first is 10 off until it is used up, then 9 to 0; the second is 20 off throughout.
    assert_eq!(of.mae_countdown, (100.0 + 45.0 + 200.0) / 30.0);
    let bins = Bins::equal(2, 100);
    let certain = |bin: usize| {
        let mut q = vec![0.25; 2];
        q[bin] = 0.75;
        trail_probe::Prediction::Bins { bins: Box::new(bins), q }
    };
    let of = PromptOnly::of(&[(certain(0), 20), (certain(1), 90), (certain(1), 30)]);
    assert_eq!((of.bin_accuracy, of.mae), (Some(2.0 / 3.0), (17.5 + 27.5 + 32.5) / 3.0));
    assert_eq!(of.tau_b, of.tau_b_likeliest);
    // The third of 64 bins over 100 tokens is from 3.1 to 4.7: its midpoint's whole tokens are 3.
    let mut q = vec![0.0; 64];
    q[2] = 1.0;
    let narrow = trail_probe::Prediction::Bins { bins: Box::new(Bins::equal(64, 100)), q };
    assert_eq!(PromptOnly::of(&[(narrow, 4)]).bin_accuracy, Some(1.0));
    assert_eq!(PromptOnly::of(&[]), PromptOnly::default());
}

#[test]
fn tau_within_batches_is_the_mean_over_random_ones() {
    let predicted = |tokens: u32| trail_probe::Prediction::Tokens(tokens as f32);
    let ordered: Vec<_> = (1..=40).map(|tokens| (predicted(tokens), 2 * tokens)).collect();
    let expected = BatchTau { batch: 8, mean: 1.0, variance: 0.0 };
    assert_eq!(BatchTau::of(&ordered, 8), Some(expected));
    // Lengths unrelated to the predictions: no order, and small batches vary more.
    let unrelated: Vec<_> = (1..=400).map(|at| (predicted(at), at * 7919 % 401)).collect();
    let [small, large] = [4, 64].map(|batch| BatchTau::of(&unrelated, batch).expect("batches"));
    assert!(small.mean.abs() < 0.1 && large.mean.abs() < 0.1, "{small:?} {large:?}");
    assert!(small.variance > 10.0 * large.variance, "{small:?} {large:?}");
    assert_eq!((BatchTau::of(&ordered, 21), BatchTau::of(&ordered, 1)), (None, None));
}
