use super::*;

fn request(initial_prediction: Option<f32>) -> RequestState {
    let new = NewRequest {
        id: RequestId(0),
        prompt_tokens: 4,
        max_tokens: 200,
        arrival_s: 0.0,
        initial_prediction,
        ..NewRequest::default()
    };
    RequestState::new(RequestIdx(0), 0, 0, &new)
}

fn prediction(step: u64, remaining: f32) -> Prediction {
    Prediction { step, remaining, ..Prediction::default() }
}

#[test]
fn the_first_prediction_is_r_for_life() {
    let mut early = request(Some(50.0));
    assert!(early.predict(&prediction(0, 80.0), 1));
    assert_eq!((early.first_prediction, early.remaining()), (Some(50.0), Some(80.0)));

    // Without one from the prompt, r is the probe's remaining tokens plus those generated.
    let mut late = request(None);
    late.advance(10, 4, true);
    late.advance(11, 1, true);
    assert!(late.predict(&prediction(12, 80.0), 1));
    late.advance(12, 1, true);
    assert!(late.predict(&prediction(13, 5.0), 1));
    assert_eq!((late.first_prediction, late.remaining()), (Some(82.0), Some(5.0)));
}

#[test]
fn a_moved_request_keeps_its_age_and_its_window() {
    let (prompt_tokens, max_tokens, initial_prediction) = (4, 200, Some(80.0));
    let new = NewRequest { prompt_tokens, max_tokens, initial_prediction, ..Default::default() };
    let mut moved = RequestState::new(RequestIdx(0), 0, 0, &NewRequest { generated: 60, ..new });
    assert_eq!((moved.generated, moved.uncomputed(), moved.remaining()), (60, 64, Some(20.0)));
    moved.advance(10, 64, true);
    assert_eq!((moved.generated, moved.remaining()), (61, Some(19.0)));
    assert!(moved.predict(&prediction(11, 90.0), 1), "the probe corrects it");
    assert_eq!((moved.first_prediction, moved.remaining()), (Some(80.0), Some(90.0)));
}

#[test]
fn a_late_prediction_is_counted_down_by_the_tokens_since() {
    let mut request = request(Some(150.0));
    request.advance(10, 4, true); // steps 11 and 12: not in the batch
    request.advance(13, 1, true);
    request.advance(14, 1, true);
    assert_eq!(request.remaining(), Some(147.0));
    assert!(request.predict(&prediction(13, 100.0), 1));
    assert_eq!(request.remaining(), Some(98.0));
    assert!(!request.predict(&prediction(10, 1.0), 1), "older than the last");
    assert!(!request.predict(&prediction(13, 1.0), 1), "of the same age");
    assert!(!request.predict(&prediction(14, f32::NAN), 1));
    assert!(request.predict(&prediction(14, 60.0), 1));
    assert_eq!(request.remaining(), Some(59.0));
}

#[test]
fn a_prediction_takes_effect_once_per_refresh() {
    let mut request = request(Some(150.0));
    request.advance(0, 4, true);
    assert!(request.predict(&prediction(1, 100.0), 4), "the first one, at an age of 1");
    let mut seen = Vec::new();
    for step in 1..10 {
        request.advance(step, 1, true);
        request.predict(&prediction(step + 1, 50.0), 4);
        seen.push(request.remaining().unwrap());
    }
    assert_eq!(seen, [99.0, 98.0, 97.0, 50.0, 49.0, 48.0, 47.0, 50.0, 49.0]);
}

#[test]
fn the_p90_counts_down_and_is_the_expectation_without_a_probe() {
    let mut request = request(Some(150.0));
    assert_eq!(request.remaining_p90(), Some(150.0));
    request.advance(10, 4, true);
    request.advance(11, 1, true);
    let probed = |p90| Prediction { p90, ..prediction(11, 60.0) };
    assert!(request.predict(&probed(120.0), 1), "at an age of 1, a token ago");
    request.advance(12, 1, true);
    assert_eq!((request.remaining(), request.remaining_p90()), (Some(58.0), Some(118.0)));
    assert!(request.predict(&Prediction { step: 13, ..probed(1e9) }, 1));
    assert_eq!(request.remaining_p90(), Some(197.0), "what max_tokens leaves");
    request.advance(13, 1, true);
    assert!(request.predict(&Prediction { step: 14, ..probed(f32::NAN) }, 1));
    assert_eq!(request.remaining_p90(), Some(60.0));
}

#[test]
fn too_late_to_count_is_dropped() {
    let mut request = request(None);
    (0..=LATE_STEPS_MAX).for_each(|step| request.advance(step, 1, true));
    assert_eq!(request.sampled_since(0), None);
    assert_eq!(request.sampled_since(1), Some(64));
    assert_eq!(request.sampled_since(64), Some(1));
    assert_eq!(request.sampled_since(65), Some(0));
    assert!(!request.predict(&prediction(0, 9.0), 1));
}

#[test]
fn remaining_stays_between_one_and_what_max_tokens_leaves() {
    let mut request = request(Some(1.0));
    request.advance(0, 4, true);
    request.advance(1, 1, true);
    assert_eq!(request.remaining(), Some(1.0));
    assert!(request.predict(&prediction(2, 1e9), 1));
    assert_eq!(request.remaining(), Some(198.0));
}
