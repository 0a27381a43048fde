//! Time of a decision over simulated reports, the booking included:
//! `../cargo.sh run --example decision` from this folder.

use std::time::Instant;

use trail_dynamo_proto::{LoadReport, Pace};
use trail_dynamo_router::loads::{Candidate, Job, Loads, Objective};
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
                    pace: Pace { decode_step_s: 0.02, prefill_token_s: 0.001 },
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
                let prompt_tokens = 16 * rng.below(64) as usize;
                let cached: Vec<usize> =
                    (0..workers).map(|_| rng.below(prompt_tokens as u64 + 1) as usize).collect();
                let candidate = |(worker, &cached_tokens): (u64, &usize)| Candidate {
                    worker,
                    active: 0,
                    cached_tokens,
                };
                let all = (0..).zip(&cached).map(candidate);
                let begun = Instant::now();
                let job = Job { size, blocks: 4, prompt_tokens };
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
