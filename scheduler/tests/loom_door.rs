//! Every interleaving of a small door, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p trail-scheduler --release --test loom_door`.
//! Capacities are the least possible, so that laps and full rings are common.
#![cfg(loom)]

use loom::thread;
use trail_scheduler::door::{CAPACITY_MIN, door};

/// Takes `count` values, letting the others run while there is none.
fn take(inside: &mut trail_scheduler::door::Consumer<u32>, count: usize) -> Vec<u32> {
    let mut values = Vec::new();
    while values.len() < count {
        match inside.pop() {
            Some(value) => values.push(value),
            None => thread::yield_now(),
        }
    }
    values
}

#[test]
fn two_producers_one_consumer() {
    loom::model(|| {
        let (outside, mut inside) = door(CAPACITY_MIN);
        let producers = [1, 2].map(|value| {
            let outside = outside.clone();
            thread::spawn(move || outside.try_push(value).unwrap())
        });
        let mut values = take(&mut inside, 2);
        values.sort();
        assert_eq!(values, [1, 2]);
        assert_eq!(inside.pop(), None);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

#[test]
fn a_full_ring_gives_back_and_laps() {
    loom::model(|| {
        let (outside, mut inside) = door(CAPACITY_MIN);
        outside.try_push(0).unwrap();
        let producer = thread::spawn(move || {
            let mut given_back = 0;
            for value in [1, 2] {
                while outside.try_push(value).is_err() {
                    given_back += 1;
                    thread::yield_now();
                }
            }
            given_back
        });
        assert_eq!(take(&mut inside, 3), [0, 1, 2]);
        producer.join().unwrap();
    });
}

#[test]
fn two_producers_race_for_the_last_cell() {
    loom::model(|| {
        let (outside, mut inside) = door(CAPACITY_MIN);
        outside.try_push(0).unwrap();
        let other = outside.clone();
        let producer = thread::spawn(move || other.try_push(1).is_ok());
        let here = outside.try_push(2).is_ok();
        let there = producer.join().unwrap();
        assert!(here != there);
        assert_eq!(take(&mut inside, 2), [0, if here { 2 } else { 1 }]);
        assert_eq!(inside.pop(), None);
    });
}

#[test]
fn what_is_left_inside_is_dropped() {
    loom::model(|| {
        let (outside, inside) = door(CAPACITY_MIN);
        let witness = std::sync::Arc::new(());
        let value = witness.clone();
        let producer = thread::spawn(move || outside.try_push(value).unwrap());
        drop(inside);
        producer.join().unwrap();
        assert_eq!(std::sync::Arc::strong_count(&witness), 1);
    });
}
