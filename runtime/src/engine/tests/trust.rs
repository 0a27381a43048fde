//! Predictions that rank worse than age lose the scheduler's trust, and find it again.

use trail_scheduler::policies::Trail;

use super::delivery::{predicted, replaying_one};
use super::run_until_idle;
use crate::engine::{Event, PolicyKind, Request, SteppedEngine};

/// A request of `tokens` whose remaining length is predicted by `predict`.
fn request(tokens: u32, predict: impl Fn(f32) -> f32) -> Request {
    let predictions: Vec<f32> = (0..tokens).rev().map(|left| predict(left as f32 + 1.0)).collect();
    let initial_prediction = predictions.first().copied();
    let predictions = Some(predictions.into());
    Request { initial_prediction, predictions, ..predicted(tokens, 0.0) }
}

/// Serves 160 requests, one after the other.
fn serve(engine: &mut SteppedEngine, predict: impl Fn(f32) -> f32) {
    for index in 0..160 {
        let _handle = engine.submit(request(1 + index * 7 % 23, &predict)).expect("fits");
        run_until_idle(engine);
    }
}

/// True if a short request ends before a long one that arrived earlier.
fn is_short_first(engine: &mut SteppedEngine) -> bool {
    let long = engine.submit(request(20, |left| left)).expect("fits");
    let short = engine.submit(request(2, |left| left)).expect("fits");
    let is_finished = |event| matches!(event, Event::Finished { .. });
    loop {
        engine.step().expect("no breakdown");
        if std::iter::from_fn(|| short.try_recv()).any(is_finished) {
            run_until_idle(engine);
            return true;
        }
        if std::iter::from_fn(|| long.try_recv()).any(is_finished) {
            run_until_idle(engine);
            return false;
        }
    }
}

#[test]
fn wrong_predictions_give_way_to_arrival_until_they_are_right_again() {
    let policy = PolicyKind::Trail(Trail::paper(1.0));
    let mut engine = replaying_one(policy);
    assert_eq!(engine.stats().prediction_window, None);
    assert!(is_short_first(&mut engine));
    serve(&mut engine, |left| 100.0 - left);
    let stats = engine.stats();
    let window = stats.prediction_window.expect("160 answers");
    assert!(!window.trusted && window.tau < -0.8 && window.tau_of_age.abs() < 0.3, "{window:?}");
    assert_eq!(stats.predictions_distrusted, 1);
    assert!(!is_short_first(&mut engine));
    serve(&mut engine, |left| left);
    let stats = engine.stats();
    assert!(stats.prediction_window.is_some_and(|window| window.trusted && window.mae < 20.0));
    assert_eq!(stats.predictions_distrusted, 1);
    assert!(is_short_first(&mut engine));
}
