//! Cost of a parallel region of the CPU backend: fork, empty work items, join.

use std::hint::black_box;
use std::time::Instant;

use trail_platform::stats::median;
use trail_runtime::cpu::Pool;

/// Regions before the first measured one, in which all threads wake.
const WARM_UP: usize = 2_000;
/// Measured regions.
const REGIONS: usize = 20_000;
/// Work items of a thread, as in the products of a step.
const ITEMS: usize = 4;

/// Returns the median time from the start of a region with empty items to its end, microseconds.
pub fn median_us(pool: &mut Pool) -> f64 {
    let items = ITEMS * pool.num_workers();
    let mut times = Vec::with_capacity(REGIONS);
    for region in 0..WARM_UP + REGIONS {
        let start = Instant::now();
        pool.for_each(
            items,
            || false,
            |_, item| {
                black_box(item);
            },
        );
        if region >= WARM_UP {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    median(&times)
}
