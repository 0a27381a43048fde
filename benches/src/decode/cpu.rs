//! Decode steps on the CPU, as a share of its read bandwidth.
//!
//! A step reads each weight once for all rows, of a mixture's experts those that a row goes to, and
//! the keys and values of each row's context. Those bytes over the step's time are compared with
//! the fastest read of the same weights, measured before and after the step.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use trail_cli::Error;
use trail_platform::stats::median;
use trail_runtime::backend::Batch;
use trail_runtime::cpu::{CpuForward, Pool};
use trail_runtime::model::Adapter;

use super::DecodeArgs;
use crate::barrier;
use crate::model::{BenchModel, verify};
use crate::reads::ReadCeiling;

/// Measurements of one batch size.
struct Row {
    batch: Batch,
    checksum: Option<u64>,
    seconds: Vec<f64>,
    /// Bandwidth over the read bandwidth just before or after, whichever is higher.
    shares: Vec<f64>,
    /// Fork/join regions of a step.
    regions: u64,
    /// Bytes that a step reads: weights, the embeddings of the new tokens, keys and values.
    bytes: usize,
}

impl Row {
    /// Of `size` rows, which have `adapters` in turn, if any. Recurrent states before the rows are
    /// the last one, which no pass writes, so that repetitions are equal.
    fn new(
        (bench, forward): (&BenchModel, &CpuForward),
        size: usize,
        context: usize,
        adapters: &[Arc<Adapter>],
    ) -> Row {
        let mut batch = bench.decode_batch(size, context - 1, context);
        let unwritten = forward.num_states().saturating_sub(1) as u32;
        let states = batch.segments.iter_mut().map(|segment| &mut segment.state);
        states.for_each(|state| state.before = state.before.map(|_| unwritten));
        batch.adapters = adapters.to_vec();
        for (segment, adapter) in batch.segments.iter_mut().zip((0..adapters.len() as u32).cycle())
        {
            segment.adapter = Some(adapter);
        }
        Row { batch, checksum: None, seconds: Vec::new(), shares: Vec::new(), regions: 0, bytes: 0 }
    }
}

/// Measures each batch size of `args`, at most `largest` rows.
pub fn run(args: &DecodeArgs, bench: &BenchModel, largest: usize) -> Result<Value, Error> {
    let mut forward = bench.forward(largest, largest, args.context)?;
    fill_kv(&mut forward);
    let mut reader = bench.pool()?;
    let adapters = args.adapters.load(&bench.model.config)?;
    let mut rows = Vec::new();
    for &size in &args.batch {
        rows.push(Row::new((bench, &forward), size, args.context, &[]));
        if !adapters.is_empty() {
            rows.push(Row::new((bench, &forward), size, args.context, &adapters));
        }
    }
    let mut ceiling = ReadCeiling::new(forward.isa());
    let mut reads = Vec::new();
    let mut before = 0.0;
    for repeat in 0..=bench.repeats {
        for row in &mut rows {
            let regions = forward.pool().regions();
            let start = Instant::now();
            let logits = forward.forward(&row.batch, &[]);
            let seconds = start.elapsed().as_secs_f64();
            verify(logits, &mut row.checksum)?;
            row.regions = forward.pool().regions() - regions;
            row.bytes = step_bytes(bench, &forward, &row.batch, args.context);
            let after = read_weights(&mut ceiling, &mut reader, &forward);
            let read = after.max(before);
            before = after;
            // The first pass warms caches and page tables.
            if repeat > 0 {
                row.seconds.push(seconds);
                row.shares.push(row.bytes as f64 / seconds / 1e9 / read);
                reads.push(read);
            }
        }
    }
    let barrier_us = barrier::median_us(forward.pool_mut());
    let rows = rows.iter().map(|row| report(row, args.context, barrier_us)).collect();
    let ranked = ceiling.ranked();
    let by_kernel = ranked.iter().map(|&(name, rate)| (name.into(), json!(rate)));
    let mut report = bench.report(&forward);
    report["rows"] = rows;
    report["barrier_us"] = json!(barrier_us);
    report["read_gb_per_s"] = json!(median(&reads));
    report["read_kernel"] = json!(ranked[0].0);
    report["read_kernels_gb_per_s"] = Value::Object(by_kernel.collect());
    Ok(report)
}

/// Any finite keys and values: attention's time does not depend on them.
pub fn fill_kv(forward: &mut CpuForward) {
    for block in 0..forward.kv().num_blocks() as u32 {
        // 0.046 in f32 and bf16, 1.3 in f16.
        forward.kv_mut().block_mut(block).fill(0x3d);
    }
}

/// GB/s of the fastest read of what the last step read of the weights.
fn read_weights(ceiling: &mut ReadCeiling, reader: &mut Pool, forward: &CpuForward) -> f64 {
    let pieces: Vec<&[u8]> =
        forward.matrices_read().into_iter().map(|tensor| tensor.bytes()).collect();
    ceiling.measure(reader, &pieces)
}

/// Bytes that the last step read: weights and those of adapters, the embeddings of the new tokens,
/// keys and values.
fn step_bytes(bench: &BenchModel, forward: &CpuForward, batch: &Batch, context: usize) -> usize {
    let model = &bench.model;
    let weights: usize = forward.matrices_read().iter().map(|tensor| tensor.bytes().len()).sum();
    let adapters: usize = batch.adapters.iter().map(|adapter| adapter.bytes()).sum();
    let embedding = model.weights.embed.row_len();
    weights
        + adapters
        + batch.rows() * (embedding + model.config.kv_read_bytes(context, bench.kv_dtype()))
}

fn report(row: &Row, context: usize, barrier_us: f64) -> Value {
    let batch = row.batch.rows();
    let seconds = median(&row.seconds);
    let best = row.seconds.iter().copied().fold(f64::INFINITY, f64::min);
    json!({
        "batch": batch,
        "context": context,
        "adapters": row.batch.adapters.len(),
        "step_us": {"median": seconds * 1e6, "best": best * 1e6},
        "tokens_per_s": batch as f64 / seconds,
        "gb_per_s": row.bytes as f64 / seconds / 1e9,
        "share_of_read_bandwidth": median(&row.shares),
        "regions": row.regions,
        "barrier_share": row.regions as f64 * barrier_us / (seconds * 1e6),
    })
}
