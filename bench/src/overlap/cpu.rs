//! The overlap on the CPU: decode steps with and without the tap.
//!
//! Steps with and without the tap alternate, so that the machine's drift falls on both alike.

use std::time::Instant;

use serde_json::{Value, json};
use trail_runtime::batch::Batch;
use trail_runtime::cpu::{CpuBackend, Tap};
use trail_runtime::engine::{Forecast, TapPlan, Tenant};

use super::OverlapArgs;
use crate::model::{BenchModel, median, streamed};

/// Steps in one measurement: a pair of measurements is long beside the clock and short beside the drift.
const STEPS: u64 = 4;
/// Tokens that each request generates before it begins anew: its context hardly grows, and every tapped
/// step brings the probe a new token.
const ROUND: u64 = 64;

/// Measures.
pub fn run(args: &OverlapArgs, model: &BenchModel) -> Result<Value, String> {
    let rows: Result<Vec<Value>, String> =
        args.batch.iter().map(|&batch| row(args, model, batch)).collect();
    Ok(json!({
        "model": model.name,
        "threads": model.threads(),
        "context": args.context,
        "rows": rows?,
    }))
}

fn row(args: &OverlapArgs, model: &BenchModel, batch: usize) -> Result<Value, String> {
    let mut bench = Bench::new(args, model, batch)?;
    bench.steps(false);
    bench.steps(true);
    let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    bench.slack_us.clear();
    (bench.fresh, bench.late) = (0, 0);
    for repeat in 0..model.repeats {
        // Which goes first alternates too.
        let first = repeat % 2 == 0;
        let a = bench.steps(first);
        let b = bench.steps(!first);
        let (with, without) = if first { (a, b) } else { (b, a) };
        on.push(with);
        off.push(without);
        ratios.push(with / without - 1.0);
    }
    bench.slack_us.sort_by(f64::total_cmp);
    let slack = |p: f64| bench.slack_us[((bench.slack_us.len() - 1) as f64 * p) as usize];
    Ok(json!({
        "batch": batch,
        "step_us_off": median(&off),
        "step_us_on": median(&on),
        "overhead": median(&ratios),
        "mac_share": bench.mac_share,
        "fresh_share": bench.fresh as f64 / (bench.fresh + bench.late) as f64,
        "slack_us": { "p50": slack(0.5), "p1": slack(0.01) },
    }))
}

/// A batch of requests that decode on and on.
struct Bench {
    backend: CpuBackend,
    forecast: Forecast,
    tap: TapPlan,
    /// One step each: the token at `context`, the next one, ...
    batches: Vec<Batch>,
    /// The probe's multiply-adds over the model's, for one row.
    mac_share: f64,
    step: u64,
    slack_us: Vec<f64>,
    fresh: u64,
    late: u64,
}

impl Bench {
    fn new(args: &OverlapArgs, model: &BenchModel, batch: usize) -> Result<Bench, String> {
        let probe = model.probe().map_err(|error| error.to_string())?;
        let macs: usize = streamed(&model.model).map(|tensor| tensor.rows * tensor.cols).sum();
        let mac_share = probe.head.macs() as f64 / macs as f64;
        let longest = args.context + ROUND as usize;
        let backend = model.backend(batch, batch, longest)?;
        let forecast = Forecast::new(probe, batch, 2 * batch);
        let token = |at: u64| model.decode_batch(batch, args.context - 1 + at as usize, longest);
        let batches = (0..ROUND).map(token).collect();
        let (tap, slack_us) = (TapPlan::with_capacity(batch), Vec::new());
        let (step, fresh, late) = (0, 0, 0);
        Ok(Bench { backend, forecast, tap, batches, mac_share, step, slack_us, fresh, late })
    }

    /// Microseconds a step, over a few steps.
    fn steps(&mut self, tapped: bool) -> f64 {
        let start = Instant::now();
        for _ in 0..STEPS {
            self.step(tapped);
        }
        start.elapsed().as_secs_f64() * 1e6 / STEPS as f64
    }

    fn step(&mut self, tapped: bool) {
        let batch = &self.batches[(self.step % ROUND) as usize];
        let num_slots = batch.segments.len() as u32;
        let generation = (self.step / ROUND) as u32 + 1;
        if self.step.is_multiple_of(ROUND) {
            (0..num_slots).for_each(|slot| self.forecast.begin(slot, generation));
        }
        self.step += 1;
        // Requests with a prompt of one token: all rows are output.
        let tenant = Tenant { generation, prompt_len: 1 };
        self.tap.fill(batch, |_| tenant);
        let sink = self.forecast.tap(self.step, &self.tap);
        let tap = Tap { layer: self.forecast.layer(), sink: &sink };
        self.backend.forward(batch, tapped.then_some(tap));
        if !tapped {
            return;
        }
        if let Some(ready) = self.forecast.ready(self.step) {
            self.slack_us.push(ready.elapsed().as_secs_f64() * 1e6);
        }
        for slot in 0..num_slots {
            match self.forecast.read(slot) {
                Some(reading) if reading.step == self.step => self.fresh += 1,
                _ => self.late += 1,
            }
        }
    }
}
