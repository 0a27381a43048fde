//! `bench probe`: the probe's MLP and its filter on one thread, as a share of the limit.
//!
//! The limit of a batch is the larger of two times: its multiply-adds at the peak of FMA, and its
//! weights at the rate at which they can be read from the cache that holds them. Both are measured
//! between the repetitions.

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error, count};
use trail_platform::stats::median;
use trail_platform::{Isa, Rng};
use trail_probe::{
    AGES, Bins, Filter, Fit, Head, HeadDtype, Lengths, MAX_BINS, Partials, Rows, TokenFilter,
    Tracker, Weights, reference,
};
use trail_runtime::cpu::Pool;

use crate::ceilings;
use crate::reads::ReadKernel;
use crate::report::{Column, Group};

/// Most rows of a batch.
const MAX_ROWS: usize = 1 << 14;

/// Requests of the filter's step.
const FILTER_ROWS: usize = 256;

/// Time of one measurement, seconds.
const MEASUREMENT_S: f64 = 0.03;
/// The same of each kernel of the read.
const READ_S: f64 = 0.005;

/// The columns of the table.
pub const COLUMNS: &[Group] = &[
    Group("", &[Column("batch", "/batch", 0), Column("weights", "/dtype", 0)]),
    Group(
        "MLP",
        &[
            Column("us a row", "/us_per_row", 3),
            Column("GFLOP/s", "/gflops", 1),
            Column("share of limit", "/share_of_limit", 3),
        ],
    ),
];

/// Options of `bench probe`.
#[derive(Args, Clone, Debug)]
pub struct ProbeArgs {
    /// Rows of a pass, a list
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256,512,2048",
        value_parser = count::<MAX_ROWS>)]
    batch: Vec<usize>,
    /// Types of the weights, a list: f32, bf16, int8
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16,int8")]
    dtype: Vec<HeadDtype>,
    /// Width of an activation
    #[arg(long, default_value_t = 4096, value_parser = count::<65536>)]
    width: usize,
    /// Hidden units
    #[arg(long, default_value_t = 512, value_parser = count::<16384>)]
    hidden: usize,
    /// Bins over 512 tokens
    #[arg(long, default_value_t = 10, value_parser = count::<MAX_BINS>)]
    bins: usize,
    /// Measurements of each figure; the median is reported
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

/// Measures every batch.
pub fn run(args: &ProbeArgs, engine: &EngineArgs) -> Result<Value, Error> {
    let weights = Weights::random(args.width, args.hidden, args.bins, 1);
    let mut limits = Limits {
        isa: engine.cpu().isa.resolve()?,
        pool: Pool::new(1)?,
        peaks: Vec::new(),
        reads: Vec::new(),
    };
    let mut rows = Vec::new();
    for &dtype in &args.dtype {
        let head = Head::with_dtype(&weights, dtype).with_isa(engine.cpu().isa)?;
        for &batch in &args.batch {
            rows.push(measure(&head, dtype, &weights, batch, args.repeats, &mut limits)?);
        }
    }
    let bins = Bins::equal(args.bins, 512);
    let filter: Vec<f64> = (0..args.repeats)
        .map(|_| filter_seconds(bins, engine.cpu().isa))
        .collect::<Result<_, _>>()?;
    Ok(json!({
        "shape": [args.width, args.hidden, args.bins],
        "isa": engine.cpu().isa.resolve()?.to_string(),
        "threads": 1,
        "fma_peak_gflops": median(&limits.peaks),
        "l3_read_gb_s": median(&limits.reads),
        "rows": rows,
        "token_filter": { "rows": FILTER_ROWS, "us": median(&filter) * 1e6 },
    }))
}

/// The ceilings of one thread, as they were measured beside each figure.
struct Limits {
    isa: Isa,
    pool: Pool,
    peaks: Vec<f64>,
    reads: Vec<f64>,
}

impl Limits {
    /// Shortest time of `flops` that read `weights`, seconds.
    fn seconds(&mut self, flops: f64, weights: &[u8]) -> f64 {
        let peak = ceilings::fma_gflop_per_s(&mut self.pool, self.isa, MEASUREMENT_S / 2.0);
        let read = cached_read(&mut self.pool, self.isa, weights);
        self.peaks.push(peak);
        self.reads.push(read);
        (flops / peak).max(weights.len() as f64 / read) / 1e9
    }
}

/// Measures the passes of `batch` rows.
fn measure(
    head: &Head,
    dtype: HeadDtype,
    weights: &Weights,
    batch: usize,
    repeats: u32,
    limits: &mut Limits,
) -> Result<Value, Error> {
    let mut rng = Rng::new(2);
    let inputs: Vec<f32> = (0..batch * head.d()).map(|_| rng.signed()).collect();
    let partials = Partials::new(head, batch);
    let mut out = vec![0.0; batch * head.bins()];
    let of = Rows::of(&inputs);
    head.forward(of, batch, &partials, &mut out);
    check(&dtype.round(weights), &inputs[..head.d()], &out[..head.bins()])?;
    let bytes = vec![1_u8; head.weight_bytes()];
    let flops = 2.0 * (head.macs() * batch) as f64;
    let (mut times, mut shares) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let limit = limits.seconds(flops, &bytes);
        let seconds = timed(MEASUREMENT_S, || head.forward(of, batch, &partials, &mut out));
        times.push(seconds);
        shares.push(limit / seconds);
    }
    let seconds = median(&times);
    Ok(json!({
        "batch": batch,
        "dtype": dtype.name(),
        "us_per_row": seconds * 1e6 / batch as f64,
        "gflops": flops / seconds / 1e9,
        "share_of_limit": median(&shares),
    }))
}

/// Fails if the probabilities `p` of the first row are not those of the reference.
fn check(weights: &Weights, row: &[f32], p: &[f32]) -> Result<(), Error> {
    let row = reference::Row { activation: row, generated: 0, prompt: None };
    let exact = reference::forward(weights, row);
    let bounds = exact.probabilities.iter().zip(&exact.tolerances);
    match p.iter().zip(bounds).all(|(&p, (exact, bound))| (f64::from(p) - exact).abs() <= *bound) {
        true => Ok(()),
        false => Err(Error::failed(format!("{p:?} is not the reference's {exact:?}"))),
    }
}

/// Seconds of one call of `run`, over calls that take `measurement_s`.
fn timed(measurement_s: f64, mut run: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0.0);
    loop {
        run();
        calls += 1.0;
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed >= measurement_s {
            return elapsed / calls;
        }
    }
}

/// GB/s at which the fastest kernel of `isa` reads `bytes` again and again.
fn cached_read(pool: &mut Pool, isa: Isa, bytes: &[u8]) -> f64 {
    let rate = |kernel: ReadKernel| {
        let seconds = timed(READ_S, || {
            kernel.gb_per_s(pool, &[bytes]);
        });
        bytes.len() as f64 / seconds / 1e9
    };
    ReadKernel::all(isa).into_iter().map(rate).fold(0.0, f64::max)
}

/// Seconds in which the token filter takes a step of [`FILTER_ROWS`] requests, on average over
/// steps from the first to the last of an answer.
fn filter_seconds(bins: Bins, isa: Isa) -> Result<f64, Error> {
    let states = Lengths::new(bins.max_tokens()).len();
    let fit = Fit {
        lengths: vec![1.0 / states as f32; states],
        temperature: [1.0; AGES],
        evidence: [0.1; AGES],
    };
    let mut rng = Rng::new(3);
    let p: Vec<f32> = (0..FILTER_ROWS * bins.count()).map(|_| rng.signed().abs()).collect();
    let filter = TokenFilter::new(bins, fit).with_isa(isa)?;
    let mut tracker = Tracker::new(Filter::Tokens(filter), FILTER_ROWS);
    let (start, steps) = (Instant::now(), bins.max_tokens());
    for generated in 0..steps {
        for (request, p) in p.chunks_exact(bins.count()).enumerate() {
            tracker.observe(request, 0, generated, p);
        }
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(steps))
}
