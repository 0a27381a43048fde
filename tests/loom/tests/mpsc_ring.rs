//! Every interleaving of a small queue, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-loom --release`
//!
//! Capacities are the smallest possible, so that laps and full rings are common.
#![cfg(loom)]

use loom::thread;
use trail_loom::mpsc_ring::{CAPACITY_MIN, Consumer, mpsc_ring};

/// Takes `count` values, yielding to the other threads while there is none.
fn take(consumer: &mut Consumer<u32>, count: usize) -> Vec<u32> {
    let mut values = Vec::new();
    while values.len() < count {
        match consumer.pop() {
            Some(value) => values.push(value),
            None => thread::yield_now(),
        }
    }
    values
}

#[test]
fn two_producers_one_consumer() {
    loom::model(|| {
        let (producer, mut consumer) = mpsc_ring(CAPACITY_MIN);
        let handles = [1, 2].map(|value| {
            let producer = producer.clone();
            thread::spawn(move || producer.try_push(value).unwrap())
        });
        let mut values = take(&mut consumer, 2);
        values.sort();
        assert_eq!(values, [1, 2]);
        assert_eq!(consumer.pop(), None);
        for handle in handles {
            handle.join().unwrap();
        }
    });
}

#[test]
fn a_full_ring_returns_the_value_and_laps() {
    loom::model(|| {
        let (producer, mut consumer) = mpsc_ring(CAPACITY_MIN);
        producer.try_push(0).unwrap();
        let handle = thread::spawn(move || {
            let mut refused = 0;
            for value in [1, 2] {
                while producer.try_push(value).is_err() {
                    refused += 1;
                    thread::yield_now();
                }
            }
            refused
        });
        assert_eq!(take(&mut consumer, 3), [0, 1, 2]);
        handle.join().unwrap();
    });
}

#[test]
fn two_producers_race_for_the_last_cell() {
    loom::model(|| {
        let (producer, mut consumer) = mpsc_ring(CAPACITY_MIN);
        producer.try_push(0).unwrap();
        let other = producer.clone();
        let handle = thread::spawn(move || other.try_push(1).is_ok());
        let here = producer.try_push(2).is_ok();
        let there = handle.join().unwrap();
        assert!(here != there);
        assert_eq!(take(&mut consumer, 2), [0, if here { 2 } else { 1 }]);
        assert_eq!(consumer.pop(), None);
    });
}

#[test]
fn values_left_in_the_queue_are_dropped() {
    loom::model(|| {
        let (producer, consumer) = mpsc_ring(CAPACITY_MIN);
        let witness = std::sync::Arc::new(());
        let value = witness.clone();
        let handle = thread::spawn(move || producer.try_push(value).unwrap());
        drop(consumer);
        handle.join().unwrap();
        assert_eq!(std::sync::Arc::strong_count(&witness), 1);
    });
}
