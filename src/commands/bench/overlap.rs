//! `bench overlap`: what tap and probe add to a decode step, and how early the predictions are.
//!
//! Steps with and without the tap alternate, so that the machine's drift falls on both alike.

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use trail_base::stats::{median, quantile};
use trail_runtime::batch::Batch;
use trail_runtime::cpu::{CpuBackend, Tap};
use trail_runtime::engine::{Forecast, TapPlan, Tenant};

use super::gpu;
use super::subject::{Subject, streamed};
use super::timeline::{self, Files};

/// Steps in one measurement: a pair of measurements is long beside the clock and short beside the drift.
const STEPS: u64 = 4;
/// Tokens that each request generates before it begins anew: its context hardly grows, and every tapped
/// step brings the probe a new token.
const ROUND: u64 = 64;

/// Options of `bench overlap`.
#[derive(Args, Clone, Debug)]
pub struct OverlapArgs {
    /// Batch sizes
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    pub batch: Vec<usize>,
    /// Tokens in each row's context when the measurement begins
    #[arg(long, default_value_t = 128)]
    pub context: usize,
    /// Record steps of the largest batch as well, and draw one with its neighbours: PREFIX.svg, and PREFIX.json for
    /// chrome://tracing or Perfetto
    #[arg(long, value_name = "PREFIX")]
    timeline: Option<String>,
}

/// Measures by `figures`, and records what `--timeline` asks for.
pub fn with_timeline(
    args: &OverlapArgs,
    subject: &Subject,
    figures: impl FnOnce(&Subject) -> Result<Value, String>,
) -> Result<Value, String> {
    // What cannot be written is said before anything is measured.
    let files = args.timeline.as_deref().map(Files::create).transpose()?;
    let mut figures = figures(subject)?;
    if let (Some(files), Some(&batch)) = (files, args.batch.iter().max()) {
        let timeline =
            subject.on(|s| timeline::on_cpu(args, s, batch), |s| gpu::timeline(args, s, batch))?;
        figures["timeline"] = files.write(&timeline)?;
    }
    Ok(figures)
}

/// Measures.
pub fn run(args: &OverlapArgs, subject: &Subject) -> Result<Value, String> {
    if args.context == 0 || args.batch.contains(&0) {
        return Err("context and batch sizes must be at least 1".into());
    }
    let rows: Result<Vec<Value>, String> =
        args.batch.iter().map(|&batch| row(args, subject, batch)).collect();
    Ok(json!({
        "model": subject.name,
        "threads": subject.threads(),
        "context": args.context,
        "rows": rows?,
    }))
}

fn row(args: &OverlapArgs, subject: &Subject, batch: usize) -> Result<Value, String> {
    let mut bench = Bench::new(args, subject, batch)?;
    bench.steps(false);
    bench.steps(true);
    let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    bench.slack_us.clear();
    (bench.fresh, bench.late) = (0, 0);
    for repeat in 0..subject.repeats {
        // Which goes first alternates too.
        let first = repeat % 2 == 0;
        let a = bench.steps(first);
        let b = bench.steps(!first);
        let (with, without) = if first { (a, b) } else { (b, a) };
        on.push(with);
        off.push(without);
        ratios.push(with / without - 1.0);
    }
    Ok(json!({
        "batch": batch,
        "step_us_off": median(&off),
        "step_us_on": median(&on),
        "overhead": median(&ratios),
        "mac_share": bench.mac_share,
        "fresh_share": bench.fresh as f64 / (bench.fresh + bench.late) as f64,
        "slack_us": {
            "p50": quantile(&bench.slack_us, 0.5),
            "p1": quantile(&bench.slack_us, 0.01),
        },
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
    fn new(args: &OverlapArgs, subject: &Subject, batch: usize) -> Result<Bench, String> {
        let probe = subject.probe().map_err(|error| error.to_string())?;
        let macs: usize = streamed(&subject.model).map(|tensor| tensor.rows * tensor.cols).sum();
        let mac_share = probe.head.macs() as f64 / macs as f64;
        let longest = args.context + ROUND as usize;
        let backend = subject.backend(batch, batch, longest)?;
        let forecast = Forecast::new(probe, batch, 2 * batch);
        let token = |at: u64| subject.decode_batch(batch, args.context - 1 + at as usize, longest);
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
