//! Tests of the queue.

use futures_util::FutureExt;

use super::*;

fn queue(count: u32, max_requests: u32) -> Arc<Queue> {
    let policy = PolicyKind::Sjf(Default::default());
    Queue::new(count, max_requests, policy, None).expect("sound sizes")
}

fn submit(queue: &Arc<Queue>, tokens: f32) -> Place {
    queue.submit(1, Some(tokens), 0, None).expect("there is room")
}

fn is_admitted(place: &mut Place) -> bool {
    place.admitted().now_or_never().is_some()
}

#[test]
fn a_place_goes_to_the_shortest_and_a_dropped_one_gives_it_back() {
    let queue = queue(1, 8);
    let mut first = submit(&queue, 10.0);
    assert!(is_admitted(&mut first));
    let [mut long, mut short, mut left] = [300.0, 20.0, 1.0].map(|tokens| submit(&queue, tokens));
    assert!(![&mut long, &mut short, &mut left].into_iter().any(is_admitted));
    assert_eq!((queue.load().0, queue.load().1, queue.live()), (1, 3, 4));
    drop(left);
    drop(first);
    assert!(is_admitted(&mut short) && !is_admitted(&mut long));
    drop(short);
    assert!(is_admitted(&mut long));
    drop(long);
    assert_eq!((queue.load(), queue.live()), ((0, 0, 0.0), 0));
}

#[test]
fn a_full_queue_refuses() {
    let queue = queue(1, 2);
    let places = [1.0, 2.0].map(|tokens| submit(&queue, tokens));
    assert!(queue.submit(1, None, 0, None).is_err());
    drop(places);
    submit(&queue, 1.0);
}

/// The time of a token is that of the answers, and steps follow it.
#[test]
fn steps_come_at_the_pace_of_the_answers() {
    let queue = queue(2, 8);
    let mut state = queue.state();
    for _ in 0..1000 {
        state.measure(2.0, 100.0);
    }
    assert!((0.0199..0.0201).contains(&state.pace_s()), "{}", state.pace_s());
    drop(state);
    let _held = submit(&queue, 100.0);
    let mut state = queue.state();
    let (steps, now_s) = (state.step, state.now_s());
    state.next_s = now_s - 1.0;
    state.catch_up();
    let made = state.step - steps;
    assert!((50..=60).contains(&made), "{made}");
    state.is_up = false;
    state.next_s = now_s - 1.0;
    state.catch_up();
    assert_eq!(state.step - steps, made, "no token comes while the server is down");
}
