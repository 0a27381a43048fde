//! Assignment of observations to the requests' filters.

use super::*;
use crate::bins::Bins;
use crate::token_filter::Fit;

const EARLY: [f32; 4] = [0.7, 0.1, 0.1, 0.1];
const LATE: [f32; 4] = [0.1, 0.1, 0.1, 0.7];

fn tracker() -> Tracker {
    let bins = Bins::equal(4, 400);
    Tracker::new(Filter::Bins(Smoother::new(bins)), 2)
}

#[test]
fn the_prompts_mean_starts_the_chain() {
    let mut tracker = tracker();
    assert_eq!(tracker.estimate(1, 7), None);
    let estimate = tracker.observe(1, 7, 0, &LATE).unwrap();
    assert_eq!((estimate.generation, estimate.generated), (7, 0));
    assert!((estimate.remaining - 290.0).abs() < 1e-3, "{estimate:?}");
    assert!(estimate.quantiles.is_sorted());
    assert_eq!(tracker.estimate(1, 7), Some(estimate));
    // A better mean, over more chunks of the prompt, starts it again.
    let estimate = tracker.observe(1, 7, 0, &EARLY).unwrap();
    assert!((estimate.remaining - 110.0).abs() < 1e-3, "{estimate:?}");
}

#[test]
fn requests_have_states_of_their_own_under_the_token_filter() {
    let bins = Bins::equal(4, 400);
    let fit = Fit {
        lengths: vec![1.0 / 400.0; 400],
        temperature: [1.0; crate::AGES],
        evidence: [0.5; crate::AGES],
    };
    let alone = |p: &[f32]| {
        let mut tracker = Tracker::new(Filter::Tokens(TokenFilter::new(bins, fit.clone())), 1);
        tracker.observe(0, 1, 0, p);
        tracker.observe(0, 1, 3, p).unwrap()
    };
    let mut tracker = Tracker::new(Filter::Tokens(TokenFilter::new(bins, fit.clone())), 2);
    for generated in [0, 3] {
        tracker.observe(0, 1, generated, &EARLY);
        tracker.observe(1, 1, generated, &LATE);
    }
    assert_eq!(tracker.estimate(0, 1), Some(alone(&EARLY)));
    assert_eq!(tracker.estimate(1, 1), Some(alone(&LATE)));
    // A prompt that is computed again changes nothing; a new request starts again.
    assert_eq!(tracker.observe(0, 1, 0, &LATE), Some(alone(&EARLY)));
    tracker.observe(0, 2, 0, &LATE);
    assert_eq!(tracker.observe(0, 2, 3, &LATE).unwrap().remaining, alone(&LATE).remaining);
}

#[test]
fn missed_tokens_are_advanced_over() {
    let (mut every, mut sparse) = (tracker(), tracker());
    let flat = [0.25; 4];
    for tracker in [&mut every, &mut sparse] {
        tracker.observe(0, 1, 0, &LATE);
    }
    let last = (1..=50).map(|n| every.observe(0, 1, n, &flat).unwrap()).last().unwrap();
    let leap = sparse.observe(0, 1, 50, &flat).unwrap();
    assert!((last.remaining - leap.remaining).abs() < 0.1, "{last:?} {leap:?}");
    assert_eq!(last.generated, leap.generated);
}

#[test]
fn a_recomputed_prompt_changes_nothing() {
    let mut tracker = tracker();
    tracker.observe(0, 1, 0, &LATE);
    let before = tracker.observe(0, 1, 30, &LATE);
    assert_eq!(tracker.observe(0, 1, 0, &EARLY), before);
    assert_eq!(tracker.observe(0, 1, 12, &EARLY), before);
    assert_eq!(tracker.observe(0, 1, 30, &EARLY), before);
    assert_ne!(tracker.observe(0, 1, 31, &EARLY), before);
}

#[test]
fn a_decode_step_may_come_first() {
    let mut tracker = tracker();
    let estimate = tracker.observe(0, 1, 5, &LATE).unwrap();
    assert!((estimate.remaining - 290.0).abs() < 1e-3);
}

#[test]
fn a_late_result_of_a_finished_request_is_dropped() {
    let mut tracker = tracker();
    tracker.observe(0, 1, 0, &LATE);
    let estimate = tracker.observe(0, 2, 1, &EARLY);
    assert!((estimate.unwrap().remaining - 110.0).abs() < 1e-3, "its own chain: {estimate:?}");
    assert_eq!(tracker.observe(0, 1, 1, &LATE), None);
    assert_eq!((tracker.estimate(0, 1), tracker.estimate(0, 2)), (None, estimate));
    // Generations wrap.
    assert!(tracker.observe(1, u32::MAX / 2, 0, &LATE).is_some());
    assert!(tracker.observe(1, u32::MAX - 1, 0, &LATE).is_some());
    assert!(tracker.observe(1, 0, 0, &EARLY).is_some());
    assert_eq!(tracker.observe(1, u32::MAX - 1, 1, &LATE), None);
}

#[test]
fn surprises_are_counted() {
    let mut tracker = tracker();
    tracker.observe(0, 1, 0, &[0.98, 0.01, 0.01, 0.0]);
    tracker.observe(0, 1, 1, &[f32::NAN; 4]);
    tracker.observe(0, 1, 2, &[0.0, 0.0, 0.0, 1.0]);
    assert_eq!(tracker.surprises(), 1);
}

/// Unfiltered, what was predicted before changes nothing: p spread over bins of 100.
#[test]
fn a_raw_estimate_is_that_of_the_head_alone() {
    let mut tracker = Tracker::new(Filter::Raw(Smoother::new(Bins::equal(4, 400))), 1);
    for (generated, p, expected) in [(0, &EARLY, 110.0), (1, &LATE, 290.0), (2, &EARLY, 110.0)] {
        let estimate = tracker.observe(0, 1, generated, p).unwrap();
        assert!((estimate.remaining - expected).abs() < 1e-3, "{estimate:?}");
    }
    assert_eq!(tracker.surprises(), 0);
}

#[test]
fn an_estimate_of_a_survival_head_ends_where_answers_are_cut() {
    let bins = Bins::equal(4, 400);
    let mut tracker = Tracker::new(Filter::Survival(Smoother::new(bins)), 1);
    let q = [0.0, 0.25, 0.25, 0.5];
    let at = |tracker: &mut Tracker, generated| tracker.observe(0, 0, generated, &q).unwrap();
    assert_eq!(at(&mut tracker, 0).remaining, 0.25 * (150.0 + 250.0) + 0.5 * 350.0);
    let late = at(&mut tracker, 200);
    assert_eq!(late.remaining, 0.25 * 150.0 + 0.75 * 200.0);
    assert_eq!(late.quantiles[1..], [200.0, 200.0]);
    // Older than every answer of the training: as the head says.
    assert_eq!(at(&mut tracker, 400).remaining, 275.0);
}
