//! Tests of the queue.

use futures_util::FutureExt;

use super::*;

fn queue(count: u32, max_requests: u32) -> Arc<Queue> {
    let policy = PolicyKind::Sjf(Default::default());
    Queue::new(count, max_requests, policy, None).expect("sound sizes")
}

fn submit(queue: &Arc<Queue>, tokens: f32) -> Slot {
    queue.submit(1, Some(tokens), 0, None).expect("there is room")
}

fn is_admitted(slot: &mut Slot) -> bool {
    slot.admitted().now_or_never().is_some()
}

#[test]
fn a_slot_goes_to_the_shortest_and_a_dropped_one_gives_it_back() {
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
    let slots = [1.0, 2.0].map(|tokens| submit(&queue, tokens));
    assert!(queue.submit(1, None, 0, None).is_err());
    drop(slots);
    submit(&queue, 1.0);
}

/// The time of a token is that of the answers, and steps follow it.
#[test]
fn steps_come_at_the_pace_of_the_answers() {
    let queue = queue(2, 8);
    let mut state = queue.state();
    for _ in 0..1000 {
        state.pace.add(Duration::from_secs(2), 100);
    }
    assert!((0.0199..0.0201).contains(&state.pace.token_s()), "{}", state.pace.token_s());
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

#[test]
fn the_time_before_the_last_sending_is_none_of_the_answer_s() {
    let queue = queue(1, 8);
    let mut slot = submit(&queue, 10.0);
    assert!(is_admitted(&mut slot));
    slot.sent();
    std::thread::sleep(Duration::from_millis(200));
    slot.sent();
    slot.set_tokens(10);
    drop(slot);
    // It would be 0.02 s with that time, which is 0.03 s before the first answer.
    let token_s = queue.state().pace.token_s();
    assert!(token_s < 0.015, "{token_s}");
}

/// Steps of `queue`, as the clock makes them.
fn step(queue: &Arc<Queue>, count: u32) {
    let mut state = queue.state();
    (0..count).for_each(|_| state.step_now());
}

/// A request to a server that hangs, and two that wait, the first one with the least priority that
/// a client can give.
#[test]
fn an_answer_of_any_length_keeps_its_slot_to_its_end() {
    let queue = queue(1, 8);
    let mut endless = submit(&queue, 10.0);
    assert!(is_admitted(&mut endless));
    let mut first = queue.submit(1, Some(1.0), -127, None).expect("there is room");
    let mut second = submit(&queue, 1.0);
    step(&queue, 2 * MAX_ANSWER + 100);
    assert!(!is_admitted(&mut first) && !is_admitted(&mut second));
    assert_eq!((queue.load().0, queue.load().1), (1, 2));
    // Its client leaves when it was just submitted again.
    let before = queue.state().ids;
    let made = (0..MAX_ANSWER).take_while(|_| queue.state().ids == before);
    made.for_each(|_| step(&queue, 1));
    assert_eq!(queue.state().ids, before + 1);
    drop(endless);
    assert!(is_admitted(&mut first) && !is_admitted(&mut second));
    drop(first);
    assert!(is_admitted(&mut second));
    drop(second);
    assert_eq!((queue.load(), queue.live()), ((0, 0, 0.0), 0));
    assert!(queue.state().indices.is_empty());
}

/// As many requests as slots have one, whatever they need.
#[test]
fn long_prompts_leave_no_slot_idle_and_take_none_away() {
    let queue = queue(4, 64);
    let mut slots: Vec<Slot> =
        (0..12).map(|_| queue.submit(1 << 20, None, 0, None).expect("there is room")).collect();
    for round in 0..3 {
        step(&queue, MAX_ANSWER + 100);
        let waiting = 8 - 4 * round;
        assert_eq!((queue.load().0, queue.load().1), (4, waiting), "round {round}");
        assert_eq!(queue.state().scheduler.last_plan().rows.len(), 4);
        assert_eq!(slots.iter_mut().map(is_admitted).filter(|&is| is).count(), 4);
        slots.drain(..4);
    }
    assert_eq!(queue.live(), 0);
}
