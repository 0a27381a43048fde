//! Which requests are overdue or express, and the sums behind it.

use super::*;
use crate::policies::request;

fn bound(tail_bound: f32, express: f32, prefill_weight: f32) -> TailBound {
    let ranking = Ranking { tail_bound, express, prefill_weight, ..Ranking::PAPER };
    TailBound::new(&ranking, 64)
}

fn output(tokens: f64) -> Work {
    Work { output: tokens, prefill: 0.0 }
}

/// A bound with `count` requests of 10 tokens each that arrived at 0 s, 1 s, ...
fn backlog(share: f32, count: u64) -> TailBound {
    let mut bound = bound(share, 0.0, 0.0);
    for seq in 0..count {
        bound.on_submitted(&request(seq, None), output(10.0), 0);
    }
    bound
}

/// A step of `seconds` with one row of `len` tokens, which samples.
fn step(bound: &mut TailBound, len: u32, seconds: f64) {
    let row = PlanRow { idx: RequestIdx(0), start: 0, len, sample: true };
    bound.on_scheduled(&request(0, None), row);
    bound.on_step(bound.now_s + seconds);
}

#[test]
fn requests_that_are_in_the_system_past_the_bound_are_overdue_in_order_of_arrival() {
    for share in [0.5, 0.75] {
        let mut bound = backlog(share, 8);
        bound.on_step(8.0);
        assert_eq!(bound.next_overdue(), None, "no step was measured yet");
        step(&mut bound, 1, 0.1); // 80 tokens at 10 a second, none finished: 8 s
        assert!((bound.longest_s - 8.0).abs() < 1e-9);
        let overdue: Vec<u32> =
            std::iter::from_fn(|| bound.next_overdue()).map(|idx| idx.0).collect();
        // At 8.1 s: arrived before 8.1 - 8 `share` s.
        let end = (8.1 - 8.0 * f64::from(share)).ceil() as u32;
        assert_eq!(overdue, (0..end.min(8)).collect::<Vec<_>>(), "{share}");
        let is_overdue = |seq| bound.is_overdue(&request(seq, None));
        assert!(is_overdue(u64::from(end) - 1) && !is_overdue(u64::from(end)));
    }
}

#[test]
fn prefill_counts_until_it_is_computed() {
    let mut bound = bound(1.0, 0.0, 0.0);
    bound.on_submitted(&request(0, None), Work { output: 10.0, prefill: 100.0 }, 0);
    bound.on_submitted(&request(1, None), Work { output: 10.0, prefill: 100.0 }, 0);
    bound.on_step(0.0);
    assert_eq!(bound.backlog, Work { output: 20.0, prefill: 200.0 });
    // 0.1 s, and 0.01 s a prompt token.
    for len in [1, 31, 1, 61] {
        step(&mut bound, len, 0.1 + 0.01 * f64::from(len - 1));
    }
    assert_eq!(bound.backlog, Work { output: 20.0, prefill: 110.0 });
    assert!((bound.drain.wait_s(bound.backlog) - (2.0 + 1.1)).abs() < 1e-9);
    step(&mut bound, 41, 0.5);
    assert_eq!(bound.backlog.prefill, 100.0, "no more than it was expected to have");
    bound.on_finished(&request(0, None));
    assert_eq!(bound.backlog, Work { output: 10.0, prefill: 100.0 });
}

/// A request that needs `service` tokens in all and 9 in its burn-in, and true if it precedes
/// the overdue.
fn submit(bound: &mut TailBound, seq: u64, service: f64) -> (RequestState, bool) {
    let request = request(seq, None);
    bound.on_submitted(&request, output(service), 9);
    let is_express = bound.is_express(&request);
    (request, is_express)
}

#[test]
fn who_is_short_by_the_prompt_or_later_is_express() {
    let mut bound = bound(0.9, 0.5, 0.0);
    let (request, is_express) = submit(&mut bound, 0, 20.0);
    assert!(!is_express && submit(&mut bound, 1, 6.6).1, "the mean is 20, then 13");
    for (service, is_express) in [(6.6, true), (6.7, false)] {
        bound.expect(&request, output(service));
        assert_eq!(bound.is_express(&request), is_express);
    }
}

/// Trials of 9 tokens in a mean of 40 are worth it if more than 9 in 20 find a short request.
#[test]
fn a_request_that_was_long_by_the_prompt_is_judged_once() {
    let mut bound = bound(0.9, 0.5, 0.0);
    let mut requests: Vec<RequestState> =
        (0..3).map(|seq| submit(&mut bound, seq, 40.0).0).collect();
    for (request, (generated, service)) in requests.iter_mut().zip([(8, 30.0), (9, 2.0), (9, 30.0)])
    {
        request.generated = generated;
        bound.expect(request, output(service));
        bound.expect(request, output(service));
    }
    assert!(submit(&mut bound, 3, 40.0).1, "one of two: the first is in its burn-in");
    bound.on_finished(&requests[0]); // short, as it has ended
    let (never_ran, is_express) = submit(&mut bound, 4, 40.0);
    bound.on_finished(&never_ran);
    assert!(is_express);
    let (mut long, _) = submit(&mut bound, 5, 40.0);
    long.generated = 9;
    bound.expect(&long, output(40.0));
    assert!(submit(&mut bound, 6, 40.0).1, "two of four");
    let (mut long, _) = submit(&mut bound, 7, 40.0);
    long.generated = 9;
    bound.expect(&long, output(40.0));
    assert!(!submit(&mut bound, 8, 40.0).1, "two of five");
}

/// Predictions may come with any of the tokens: `--refresh-tokens`.
#[test]
fn an_estimate_is_due_eight_tokens_after_the_last() {
    let mut bound = bound(0.9, 0.5, 0.0);
    let (mut request, _) = submit(&mut bound, 0, 40.0);
    for generated in [9, 17, 26] {
        request.generated = generated - 2;
        assert!(!bound.is_due(&request), "{generated}");
        request.generated = generated;
        assert!(bound.is_due(&request), "{generated}");
        bound.expect(&request, output(40.0));
    }
}

#[test]
fn an_answer_that_ends_unjudged_is_judged_by_its_length() {
    let mut bound = bound(0.9, 0.5, 0.0);
    for (seq, generated, is_next_express) in [(0, 8, true), (2, 30, true), (4, 30, false)] {
        let (mut ended, _) = submit(&mut bound, seq, 40.0);
        ended.generated = generated;
        bound.on_finished(&ended);
        assert_eq!(submit(&mut bound, seq + 1, 40.0).1, is_next_express, "{seq}");
    }
}

#[test]
fn a_request_that_was_moved_here_has_no_trial_after_its_burn_in() {
    let mut bound = bound(0.9, 0.5, 0.0);
    let (mut short, _) = submit(&mut bound, 0, 40.0);
    short.generated = 1;
    bound.on_finished(&short);
    for (seq, generated) in [(1, 8), (2, 9)] {
        let mut moved = request(seq, None);
        moved.generated = generated;
        bound.on_submitted(&moved, output(40.0), 9);
        assert_eq!(bound.is_express(&moved), generated < 9);
    }
}

/// A prompt token costs half of an output token: a prompt of 20 makes a request of 5 long.
#[test]
fn a_long_prompt_is_not_short() {
    for (prefill, is_express) in [(0.0, true), (20.0, false)] {
        let mut bound = bound(1.0, 0.5, 0.5);
        bound.on_submitted(&request(0, None), output(20.0), 0);
        let next = request(1, None);
        bound.on_submitted(&next, Work { output: 5.0, prefill }, 0);
        assert_eq!(bound.is_express(&next), is_express);
    }
}

#[test]
fn the_longest_wait_is_forgotten_slowly() {
    let mut bound = backlog(0.5, 2);
    bound.on_step(0.0);
    step(&mut bound, 1, 0.1);
    assert_eq!(bound.longest_s, 2.0);
    (0..2).for_each(|seq| bound.on_finished(&request(seq, None)));
    bound.on_step(5.1);
    assert_eq!((bound.backlog, bound.longest_s), (Work::default(), 1.5));
}

/// A request of `predicted` tokens that arrives, begins, and ends after `tokens`.
fn answer(bound: &mut TailBound, seq: u64, predicted: f64, tokens: u32) {
    let mut request = request(seq, Some(predicted as f32));
    request.idx = RequestIdx(63);
    bound.on_submitted(&request, output(predicted), 0);
    request.generated = 1;
    bound.on_tokens(&request, 1);
    request.generated = tokens;
    bound.on_tokens(&request, tokens - 1);
    bound.on_finished(&request);
}

/// 630 tokens of 20 in truth for each 90 predicted; the first 64 answers are believed.
#[test]
fn a_maximum_by_predictions_as_they_are_is_forgotten_once_they_are_corrected() {
    let mut bound = bound(1.0, 0.0, 0.0);
    for seq in 1..=7 {
        bound.on_submitted(&request(seq, None), output(90.0), 0);
    }
    bound.on_step(0.0);
    step(&mut bound, 1, 0.1);
    let longest_s = |bound: &mut TailBound| {
        step(bound, 1, 0.1);
        bound.longest_s
    };
    for answered in 8..=71 {
        // Less the residual of a row, once there is an answer.
        assert!((62.0..=63.1).contains(&longest_s(&mut bound)), "answer {answered}");
        answer(&mut bound, answered, 90.0, 20);
    }
    // Seven requests of 20 tokens.
    let longest_s = longest_s(&mut bound);
    assert!((longest_s - (140.0 - 10.0) * 0.1).abs() < 0.1, "{longest_s}");
}

/// A prompt in chunks has no output; a request that comes with 30 of its 50 tokens is one of 50.
#[test]
fn a_chunk_begins_no_request_and_a_moved_one_is_predicted_whole() {
    let mut bound = bound(1.0, 0.0, 0.0);
    let new = request(1, None);
    bound.on_submitted(&new, output(10.0), 0);
    bound.on_tokens(&new, 0);
    assert_eq!(bound.unbegun, (1.0, 10.0));
    for seq in 2..66 {
        let mut moved = request(seq, None);
        (moved.idx, moved.generated) = (RequestIdx(63), 30);
        bound.on_submitted(&moved, output(20.0), 0);
        moved.generated = 50;
        bound.on_tokens(&moved, 20);
        bound.on_finished(&moved);
    }
    assert_eq!((bound.unbegun, bound.drain.unbegun(1.0, 10.0)), ((1.0, 10.0), 50.0));
}
