//! Time of a decision over simulated reports, the booking included:
//! `../cargo.sh run --example decision` from this folder.

use std::time::Instant;

use trail_dynamo_proto::LoadReport;
use trail_dynamo_router::loads::{Job, Loads, Objective};
use trail_scheduler::rng::Rng;

/// Requests at each worker: 8 run, 24 wait.
const SLOTS: u32 = 8;
const WAITING: usize = 24;
const DECISIONS: usize = 2000;

/// Prints the median and the 99th percentile for 50 and 1,000 workers.
fn main() {
    for workers in [50, 1000] {
        let (mut rng, loads) = (Rng::new(1), Loads::default());
        let report_all = |loads: &Loads, rng: &mut Rng, seq| {
            for worker_id in 0..workers {
                let mut lengths = |n| (0..n).map(|_| 1.0 + rng.below(400) as f32).collect();
                let (running, waiting) = (lengths(SLOTS as usize), lengths(WAITING));
                let report = LoadReport {
                    worker_id,
                    slots: SLOTS,
                    running,
                    waiting,
                    seq,
                    kv_free_blocks: 100,
                    ..LoadReport::default()
                };
                loads.report(report, Instant::now());
            }
        };
        let mut micros: Vec<f64> = (0..DECISIONS)
            .map(|at| {
                // As a router sees them: fresh reports between decisions.
                if at % 20 == 0 {
                    report_all(&loads, &mut rng, at as u64 + 1);
                }
                let size = Some(1.0 + rng.below(400) as f32);
                let all = (0..workers).map(|id| (id, 0));
                let begun = Instant::now();
                let job = Job { size, blocks: 4 };
                let wait = Objective::PredictedWait;
                let chosen = loads.choose(all, job, wait, begun).expect("there are workers");
                loads.book(chosen.0 as u64, chosen.1, begun);
                begun.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        micros.sort_by(f64::total_cmp);
        let (median, p99) = (micros[DECISIONS / 2], micros[DECISIONS * 99 / 100]);
        println!("{workers} workers: median {median:.1} us, p99 {p99:.1} us");
    }
}
