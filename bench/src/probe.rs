//! `bench probe`: the probe's MLP and its filter on one thread, as a share of the limit.
//!
//! The limit of a batch is the larger of two times: its multiply-adds at the peak of FMA, and its
//! weights at the rate at which they can be read from the cache that they lie in. Both are measured
//! between the repetitions.

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use trail_base::Rng;
use trail_base::stats::median;
use trail_probe::{
    AGES, Bins, Filter, Fit, Head, Lengths, MAX_BINS, Partials, TokenFilter, Tracker, Weights,
    reference,
};
use trail_runtime::cpu::Pool;
use trail_setup::{EngineArgs, Error, count};

use crate::ceilings;
use crate::report::{Column, Group};

/// Most rows of a batch.
const MAX_ROWS: usize = 1 << 14;

/// Time of one measurement, seconds.
const MEASUREMENT_S: f64 = 0.03;

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
    Group("token filter", &[Column("us a row", "/filter_us_per_row", 3)]),
];

/// Options of `bench probe`.
#[derive(Args, Clone, Debug)]
pub struct ProbeArgs {
    /// Rows of a pass, a list
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256,512,2048",
        value_parser = count::<MAX_ROWS>)]
    batch: Vec<usize>,
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
    let bins = Bins::equal(args.bins, 512);
    let weights = Weights::random(args.width, args.hidden, args.bins, 1);
    let head = Head::new(&weights).with_isa(engine.isa())?;
    let mut pool = Pool::new(1)?;
    let mut rng = Rng::new(2);
    let (mut peaks, mut reads, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for &batch in &args.batch {
        let inputs: Vec<f32> = (0..batch * args.width).map(|_| rng.signed()).collect();
        let partials = Partials::new(&head, batch);
        let mut out = vec![0.0; batch * args.bins];
        head.forward(&inputs, batch, &partials, &mut out);
        check(&weights, &inputs[..args.width], &out[..args.bins])?;
        let (mut times, mut filters, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        // Two bytes a weight, as the head holds them.
        let weight_bytes = vec![1_u8; 2 * head.macs()];
        for _ in 0..args.repeats {
            let peak = ceilings::fma_gflop_per_s(&mut pool, head.isa(), MEASUREMENT_S / 2.0);
            let read = cached_read(&mut pool, &weight_bytes);
            let seconds = timed(|| head.forward(&inputs, batch, &partials, &mut out));
            let limit =
                (flops(&head, batch) / peak / 1e9).max(weight_bytes.len() as f64 / read / 1e9);
            peaks.push(peak);
            reads.push(read);
            times.push(seconds);
            shares.push(limit / seconds);
            filters.push(filter_seconds(bins, batch, &out));
        }
        let (seconds, filter) = (median(&times), median(&filters));
        rows.push(json!({
            "batch": batch,
            "dtype": "bf16",
            "us_per_row": seconds * 1e6 / batch as f64,
            "gflops": flops(&head, batch) / seconds / 1e9,
            "share_of_limit": median(&shares),
            "filter_us_per_row": filter * 1e6 / batch as f64,
        }));
    }
    Ok(json!({
        "shape": [args.width, args.hidden, args.bins],
        "isa": head.isa().to_string(),
        "threads": 1,
        "fma_peak_gflops": median(&peaks),
        "l3_read_gb_s": median(&reads),
        "rows": rows,
    }))
}

/// Floating-point operations of a pass.
fn flops(head: &Head, batch: usize) -> f64 {
    2.0 * (head.macs() * batch) as f64
}

/// Fails if the probabilities `p` of the first row are not those of the reference.
fn check(weights: &Weights, row: &[f32], p: &[f32]) -> Result<(), Error> {
    let exact = reference::forward(&weights.to_bf16(), row);
    let bounds = exact.probabilities.iter().zip(&exact.tolerances);
    match p.iter().zip(bounds).all(|(&p, (exact, bound))| (f64::from(p) - exact).abs() <= *bound) {
        true => Ok(()),
        false => Err(Error::failed(format!("{p:?} is not the reference's {exact:?}"))),
    }
}

/// Seconds of one call of `run`, over calls that take [`MEASUREMENT_S`].
fn timed(mut run: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0.0);
    loop {
        run();
        calls += 1.0;
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed >= MEASUREMENT_S {
            return elapsed / calls;
        }
    }
}

/// GB/s at which `bytes` can be read again and again.
fn cached_read(pool: &mut Pool, bytes: &[u8]) -> f64 {
    let seconds = timed(|| {
        ceilings::read_gb_per_s(pool, &[bytes]);
    });
    bytes.len() as f64 / seconds / 1e9
}

/// Seconds in which the token filter takes a step of `batch` requests with distributions `p`
/// `[batch, bins]`, in the middle of their answers.
fn filter_seconds(bins: Bins, batch: usize, p: &[f32]) -> f64 {
    let states = Lengths::new(bins.max_tokens()).len();
    let fit = Fit {
        lengths: vec![1.0 / states as f32; states],
        temperature: [1.0; AGES],
        evidence: [0.1; AGES],
    };
    let mut tracker = Tracker::new(Filter::Tokens(TokenFilter::new(bins, fit)), batch);
    let mut generated = 0;
    timed(|| {
        for (request, p) in p.chunks_exact(bins.count()).enumerate() {
            // A new generation after the longest answer.
            tracker.observe(request, generated / 512, generated % 512, p);
        }
        generated += 1;
    })
}
