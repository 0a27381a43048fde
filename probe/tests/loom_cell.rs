//! The interleavings and reorderings the memory model allows of one writer and readers of a cell.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-probe --release --test loom_cell`
//!
//! Preemptions are bounded: three tear a read in every way (into a write, out of it, back), and the
//! unbounded search does not end. Dropping either fence of the cell fails the first test.
#![cfg(loom)]

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use trail_probe::{Cell, Estimate};

/// Explores `body`, with at most `preemptions` switches away from a runnable thread.
fn explore(preemptions: usize, body: fn()) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// Publishes `1..=last` on a separate thread. Every word follows from the step.
fn writer(cell: &Arc<Cell>, last: u32) -> JoinHandle<()> {
    let cell = cell.clone();
    thread::spawn(move || (1..=last).for_each(|n| cell.publish(n.into(), &estimate(n))))
}

fn estimate(n: u32) -> Estimate {
    let x = n as f32;
    Estimate { generation: n, generated: n, remaining: x, quantiles: [x, x, x] }
}

/// The step of what is read, 0 for nothing; panics on a torn estimate.
fn read(cell: &Cell) -> u64 {
    cell.try_read().map_or(0, |reading| {
        assert_eq!(reading.estimate, estimate(reading.step as u32));
        reading.step
    })
}

#[test]
fn no_torn_estimate_is_returned() {
    explore(3, || {
        let cell = Arc::new(Cell::default());
        let writer = writer(&cell, 2);
        read(&cell);
        writer.join().unwrap();
        assert_eq!(read(&cell), 2);
    });
}

#[test]
fn readings_do_not_go_back() {
    explore(2, || {
        let cell = Arc::new(Cell::default());
        let writer = writer(&cell, 1);
        let first = read(&cell);
        let second = read(&cell);
        // A write in progress may hide the value; here there is only one write.
        assert!(second >= first);
        writer.join().unwrap();
    });
}

#[test]
fn two_readers_do_not_disturb_each_other() {
    explore(2, || {
        let cell = Arc::new(Cell::default());
        let writer = writer(&cell, 1);
        let reader = {
            let cell = cell.clone();
            thread::spawn(move || _ = read(&cell))
        };
        read(&cell);
        reader.join().unwrap();
        writer.join().unwrap();
    });
}
