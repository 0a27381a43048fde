//! The cell under real threads; the loom test has all interleavings of fewer steps.

use std::time::{Duration, Instant};

use super::*;

/// Longest wait for all values: what comes later hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn estimate(n: u32) -> Estimate {
    let x = n as f32;
    Estimate { generation: n, generated: n + 1, remaining: x, quantiles: [x, x + 0.5, x + 1.0] }
}

#[test]
fn reads_what_was_published() {
    let cell = Cell::default();
    assert_eq!(cell.try_read(), None);
    for n in 0..5 {
        cell.publish(u64::from(n), &estimate(n));
        assert_eq!(cell.try_read(), Some(Reading { step: u64::from(n), estimate: estimate(n) }));
    }
}

#[test]
fn no_reader_sees_a_torn_value_or_time_run_backwards() {
    let writes = if cfg!(miri) { 10 } else { 200_000 };
    let (cell, begin) = (Cell::default(), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..writes).for_each(|n| cell.publish(u64::from(n), &estimate(n))));
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while last + 1 < writes {
                    assert!(begin.elapsed() < LIMIT, "the last value is not seen");
                    let Some(reading) = cell.try_read() else {
                        std::thread::yield_now();
                        continue;
                    };
                    let n = reading.step as u32;
                    assert_eq!(reading.estimate, estimate(n));
                    assert!(n >= last);
                    last = n;
                }
            });
        }
    });
}
