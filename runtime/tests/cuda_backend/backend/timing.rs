//! Host time of a step.

use super::{backend, models, options};
use std::sync::Arc;
use trail_runtime::backend::{BLOCK_TOKENS, Backend, Batch, PENDING, SamplingParams, Step};
use trail_runtime::cuda::CudaOptions;

/// The host side of a decode step of 256 rows: `cargo test --release -- --ignored --nocapture
/// cuda_host_time`.
#[test]
#[ignore = "a timing, not a proof"]
fn cuda_host_time() {
    const COUNT: usize = 256;
    let _session = trail_cuda_emulator::session();
    let model = models::grouped();
    let options = CudaOptions {
        max_rows: COUNT,
        max_segments: COUNT,
        max_requests: COUNT,
        max_context: 1024,
        kv_blocks: Some(2 * COUNT),
        ..options()
    };
    let mut backend = backend(&Arc::new(model), &options);
    let sampling = SamplingParams::default();
    let mut times = Vec::new();
    let (mut batch, mut sampled) = (Batch::default(), Vec::new());
    for number in 1..=20u64 {
        batch.clear();
        let position = number as u32 - 1;
        for index in 0..COUNT as u32 {
            let blocks = [2 * index, 2 * index + 1];
            let used = position as usize / BLOCK_TOKENS + 1;
            let token = if position == 0 { 1 } else { PENDING };
            batch.push(index, position, &[token], &blocks[..used], true);
        }
        backend.launch(&Step { number, batch: &batch, sampling: &sampling, tap: None }).unwrap();
        times.push(backend.host_time());
        if number > 1 {
            backend.collect(&mut sampled).unwrap();
        }
    }
    backend.collect(&mut sampled).unwrap();
    times.sort_unstable();
    println!("{COUNT} rows: p50 {:?}, most {:?}", times[times.len() / 2], times[times.len() - 1]);
}
