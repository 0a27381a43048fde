//! Tests of the queue.

use futures_util::FutureExt;

use super::*;

fn slots(count: u32, max_requests: u32) -> Arc<Slots> {
    let policy = PolicyKind::Sjf(Default::default());
    Slots::new(count, max_requests, policy, None).expect("sound sizes")
}

fn submit(slots: &Arc<Slots>, tokens: f32) -> Ticket {
    slots.submit(1, Some(tokens), 0, None).expect("there is room")
}

fn is_admitted(ticket: &mut Ticket) -> bool {
    ticket.admitted().now_or_never().is_some()
}

#[test]
fn a_slot_goes_to_the_shortest_and_a_dropped_ticket_gives_it_back() {
    let slots = slots(1, 8);
    let mut first = submit(&slots, 10.0);
    assert!(is_admitted(&mut first));
    let [mut long, mut short, mut left] = [300.0, 20.0, 1.0].map(|tokens| submit(&slots, tokens));
    assert!(![&mut long, &mut short, &mut left].into_iter().any(is_admitted));
    assert_eq!((slots.load().0, slots.load().1, slots.live()), (1, 3, 4));
    drop(left);
    drop(first);
    assert!(is_admitted(&mut short) && !is_admitted(&mut long));
    drop(short);
    assert!(is_admitted(&mut long));
    drop(long);
    assert_eq!((slots.load(), slots.live()), ((0, 0, 0.0), 0));
}

#[test]
fn a_full_queue_refuses() {
    let slots = slots(1, 2);
    let tickets = [1.0, 2.0].map(|tokens| submit(&slots, tokens));
    assert!(slots.submit(1, None, 0, None).is_err());
    drop(tickets);
    submit(&slots, 1.0);
}

/// The time of a token is that of the answers, and steps follow it.
#[test]
fn steps_come_at_the_pace_of_the_answers() {
    let slots = slots(2, 8);
    let mut state = slots.state();
    for _ in 0..1000 {
        state.measure(2.0, 100.0);
    }
    assert!((0.0199..0.0201).contains(&state.pace_s()), "{}", state.pace_s());
    drop(state);
    let _held = submit(&slots, 100.0);
    let mut state = slots.state();
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
