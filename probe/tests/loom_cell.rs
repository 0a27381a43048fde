//! Every interleaving and every reordering the memory model allows of one writer and readers of a cell.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-probe --release --test loom_cell`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use trail_probe::{Cell, Estimate, Reading};

/// An estimate all of whose words follow from `n`, so that a torn one gives itself away.
fn estimate(n: u32) -> Estimate {
    let x = n as f32;
    Estimate { generation: n, generated: n, remaining: x, quantiles: [x, x, x] }
}

fn check(reading: Option<Reading>) -> u64 {
    reading.map_or(0, |reading| {
        assert_eq!(reading.estimate, estimate(reading.step as u32));
        reading.step
    })
}

#[test]
fn a_reader_sees_whole_estimates_in_order() {
    loom::model(|| {
        let cell = Arc::new(Cell::default());
        let writer = {
            let cell = cell.clone();
            thread::spawn(move || (1..=2).for_each(|n| cell.publish(u64::from(n), &estimate(n))))
        };
        let first = check(cell.try_read());
        let second = check(cell.try_read());
        assert!(second == 0 || second >= first);
        writer.join().unwrap();
        assert_eq!(check(cell.try_read()), 2);
    });
}

#[test]
fn two_readers_do_not_disturb_each_other() {
    loom::model(|| {
        let cell = Arc::new(Cell::default());
        let reader = {
            let cell = cell.clone();
            thread::spawn(move || check(cell.try_read()))
        };
        let writer = {
            let cell = cell.clone();
            thread::spawn(move || cell.publish(1, &estimate(1)))
        };
        check(cell.try_read());
        reader.join().unwrap();
        writer.join().unwrap();
    });
}
