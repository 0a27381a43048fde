//! `bench kernels`: the list of CUDA kernels with where they were proven, the forecast of their
//! times from their machine code, and each kernel alone against the limit it works under: reading
//! its bytes, or multiplying, at rates measured in the same run.

mod attention;
mod cases;
mod ceilings;
mod forecast;
mod list;
mod memory;
mod products;
mod sampling;
mod step;
mod timer;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use trail_cli::{Error, count};
use trail_runtime::cuda::plan::{Chip, LaunchPlan};
use trail_runtime::cuda::{Code, Device};
use trail_runtime::model::ModelConfig;

use crate::gpu::values::{above_zero, zero_or_more};
use crate::report::{Column, Group};
use cases::{Case, MaxShape};
use forecast::{ForecastChip, Forecaster, Rates};
use memory::Memory;
use timer::{Timer, Timing};

/// Measurements of each ceiling for other benchmarks.
const REPEATS: u32 = 7;
/// Time of one such measurement, ms.
const WINDOW_MS: f64 = 4.0;

/// Parts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Matrix products
    Products,
    /// Attention, of single rows and of chunks
    Attention,
    /// Sampling, embedding, tap, probe
    Small,
}

/// Columns of the printed table, measured or listed.
pub const COLUMNS: &[Group] = &[
    Group("", &[Column("op", "/op", 0), Column("kernel", "/kernel", 0)]),
    Group("", &[Column("extents", "/extents", 0), Column("context", "/context", 0)]),
    Group("", &[Column("rows", "/rows", 0)]),
    Group("time, us", &[Column("median", "/us/median", 2), Column("best", "/us/best", 2)]),
    Group("time, us", &[Column("forecast", "/us/forecast", 2)]),
    Group("", &[Column("GB/s", "/gb_per_s", 1), Column("TFLOP/s", "/tflop_per_s", 2)]),
    Group("", &[Column("limit", "/limit", 0), Column("share", "/share", 3)]),
    Group("", &[Column("limited by", "/limited_by", 0)]),
    Group("", &[Column("kernel", "/name", 0), Column("arch", "/arch", 0)]),
    Group("", &[Column("registers", "/registers", 0), Column("shared bytes", "/shared_bytes", 0)]),
    Group("hot loop", &[Column("instructions", "/sass/instructions", 0)]),
    Group("hot loop", &[Column("hmma", "/sass/hmma", 0), Column("hgmma", "/sass/hgmma", 0)]),
    Group("hot loop", &[Column("waits", "/sass/zero_waits", 0)]),
    Group("", &[Column("fences", "/sass/fences", 0), Column("text bytes", "/sass/text_bytes", 0)]),
    Group("", &[Column("spills", "/spills", 0), Column("proven on", "/proven_on", 0)]),
    Group("", &[Column("error", "/error", 0)]),
];

/// Options of `bench kernels`.
#[derive(Args, Clone, Debug)]
pub struct KernelsArgs {
    /// Only list the kernels, their resources and where they were proven
    #[arg(long)]
    list: bool,
    /// Only forecast the times on this chip from the kernels' machine code; needs no device
    #[arg(long, value_enum, value_name = "CHIP", conflicts_with = "list")]
    forecast: Option<ForecastChip>,
    /// Forecast from these reports of machine code, as the compile program's --report prints them
    /// [default: the reports of the kernels in this program]
    #[arg(long, value_name = "FILE", requires = "forecast")]
    sass: Option<PathBuf>,
    /// Measure only kernels whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    kernel: String,
    /// Parts of a step to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "products,attention,small")]
    part: Vec<Part>,
    /// Layer shapes of this model: tiny, demo, llama3.2-1b or llama3-8b
    #[arg(long, default_value = "llama3-8b")]
    shape: String,
    /// Rows of the products
    #[arg(long, value_delimiter = ',', default_value = "1,8,16,32,64,128,256,2048,4096,8192",
        value_parser = count::<{ 1 << 20 }>)]
    rows: Vec<usize>,
    /// Most rows of attention and of the small kernels: larger shapes shrink to it
    #[arg(long = "most-rows", default_value_t = 8192,
        value_parser = clap::value_parser!(u32).range(1..))]
    max_rows: u32,
    /// Most tokens of a request, for attention
    #[arg(long = "most-context", default_value_t = 32_768,
        value_parser = clap::value_parser!(u32).range(1..))]
    max_context: u32,
    /// Measurements of each figure; the median is reported
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Time of one measurement, ms: it has as many launches as fill this time, one at least
    #[arg(long, default_value_t = 4.0, value_parser = zero_or_more)]
    window_ms: f64,
    /// MiB that the read ceiling reads: far beyond L2
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    read_mib: u32,
    /// Rounds of the mma ceiling's loop
    #[arg(
        long,
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(1..=500_000),
    )]
    mma_rounds: u32,
    /// Matrix rate that shares refer to, TFLOP/s: cuBLAS's in the same run (benches/peers)
    /// [default: the rate of mma.sync on registers alone]
    #[arg(long, value_name = "TFLOPS", value_parser = above_zero)]
    matrix_tflops: Option<f64>,
    /// CUDA device
    #[arg(long, default_value_t = 0)]
    ordinal: usize,
}

/// Measured ceilings of the chip.
struct Ceilings {
    read_gb_per_s: f64,
    mma_sync_tflops: f64,
    matrix_tflops: f64,
}

/// Lists the kernels or measures them.
pub fn run(args: &KernelsArgs) -> Result<Value, Error> {
    if args.list {
        return Ok(list::all()?);
    }
    let config = ModelConfig::named(&args.shape).map_err(Error::usage)?;
    if let Some(chip) = args.forecast {
        return forecast::all(args, chip, &config);
    }
    let device = Device::open(args.ordinal)
        .map_err(|error| format!("{error}; `bench kernels --list` needs no device"))?;
    let mut cases = cases(args, &config, device.chip());
    cases.retain(|case| case.launches().iter().any(|plan| plan.kernel.contains(&args.kernel)));
    if cases.is_empty() {
        let name = &args.kernel;
        return Err(Error::usage(format!("no kernel of this shape is named like {name:?}")));
    }
    Ok(measure(args, &cases, &device).map_err(|error| error.to_string())?)
}

fn measure(
    args: &KernelsArgs,
    cases: &[Box<dyn Case>],
    device: &Device,
) -> Result<Value, Box<dyn std::error::Error>> {
    let stream = device.context().new_stream()?;
    let memory = Memory::new(device, &stream);
    let timer = Timer::new(&stream, args.repeats, args.window_ms);
    let ceilings = ceilings(args, &memory, &timer)?;
    let rates = Rates::measured(device.chip(), ceilings.read_gb_per_s, ceilings.mma_sync_tflops);
    let forecaster = Forecaster::new(rates)?;
    let mut rows = Vec::new();
    for case in cases {
        let timing = match cases::measure(&**case, &memory, &timer) {
            Ok(timing) => timing,
            // The other cases are still worth their time.
            Err(error) => {
                rows.push(json!({
                    "op": case.op(),
                    "rows": case.rows(),
                    "context": case.context(),
                    "error": error.to_string(),
                }));
                continue;
            }
        };
        let mut row = row(&**case, &timing, &ceilings, device);
        if let Some(forecast) = forecaster.op(case.op(), &case.launches(), case.rows()) {
            row["us"]["forecast"] = json!(forecast.seconds * 1e6);
            row["limited_by"] = json!(forecast.limited_by);
        }
        rows.push(row);
    }
    Ok(json!({
        "device": device.context().name()?,
        "shape": args.shape,
        "read_gb_per_s": ceilings.read_gb_per_s,
        "mma_sync_tflop_per_s": ceilings.mma_sync_tflops,
        "matrix_tflop_per_s": ceilings.matrix_tflops,
        "rows": rows,
    }))
}

/// The failure that follows a report with rows that could not be measured.
pub fn failure(report: &Value) -> Option<Error> {
    let rows = report["rows"].as_array()?;
    let failed: Vec<&Value> = rows.iter().filter(|row| row.get("error").is_some()).collect();
    let first = failed.first()?;
    Some(Error::failed(format!(
        "{} of {} cases failed, the first {} of {} rows: {}",
        failed.len(),
        rows.len(),
        first["op"].as_str().unwrap_or_default(),
        first["rows"],
        first["error"].as_str().unwrap_or_default()
    )))
}

/// The cases to measure, in the order of the options.
fn cases(args: &KernelsArgs, config: &ModelConfig, chip: &Chip) -> Vec<Box<dyn Case>> {
    let max = MaxShape { rows: args.max_rows as usize, context: args.max_context as usize };
    let mut cases = Vec::new();
    for part in &args.part {
        match part {
            Part::Products => {
                let rows = args.rows.iter();
                cases.extend(rows.flat_map(|&rows| products::products(config, rows, chip)));
            }
            Part::Attention => cases.extend(attention::attention(config, chip, max)),
            Part::Small => {
                cases.extend(sampling::sampling(config, chip, max));
                cases.extend(step::small(config, max));
            }
        }
    }
    cases
}

/// Measures the read bandwidth (GB/s) and the mma.sync rate (TFLOP/s) of `device`.
pub fn ceilings_of(
    device: &Device,
    read_mib: usize,
    mma_rounds: usize,
) -> Result<(f64, f64), String> {
    let measure = || {
        let stream = device.context().new_stream()?;
        let (memory, timer) =
            (Memory::new(device, &stream), Timer::new(&stream, REPEATS, WINDOW_MS));
        let (read, read_time) = ceilings::ceiling_read(&memory, &timer, read_mib)?;
        let (mma, mma_time) = ceilings::ceiling_mma(&memory, &timer, mma_rounds)?;
        let read_gb_per_s = read.bytes as f64 / read_time.median_us / 1e3;
        Ok((read_gb_per_s, mma.flops as f64 / mma_time.median_us / 1e6))
    };
    measure().map_err(|error: Box<dyn std::error::Error>| error.to_string())
}

/// Runs one kernel on the device numbered `ordinal` and checks its result.
pub fn canary(ordinal: usize) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(ordinal)?;
    let stream = device.context().new_stream()?;
    ceilings::canary(&Memory::new(&device, &stream))
}

fn ceilings(
    args: &KernelsArgs,
    memory: &Memory,
    timer: &Timer,
) -> Result<Ceilings, Box<dyn std::error::Error>> {
    let (read, read_time) = ceilings::ceiling_read(memory, timer, args.read_mib as usize)?;
    let (mma, mma_time) = ceilings::ceiling_mma(memory, timer, args.mma_rounds as usize)?;
    let mma_sync_tflops = mma.flops as f64 / mma_time.median_us / 1e6;
    Ok(Ceilings {
        read_gb_per_s: read.bytes as f64 / read_time.median_us / 1e3,
        mma_sync_tflops,
        matrix_tflops: args.matrix_tflops.unwrap_or(mma_sync_tflops),
    })
}

fn row(case: &dyn Case, timing: &Timing, ceilings: &Ceilings, device: &Device) -> Value {
    let plans = case.launches();
    let kernels: Vec<&str> = plans.iter().map(|plan| plan.kernel).collect();
    let us = timing.median_us;
    let (bytes, flops) = work(&plans);
    let (limit, share) = share(&plans, us, ceilings.read_gb_per_s, ceilings.matrix_tflops);
    json!({
        "op": case.op(),
        "kernel": kernels.join(" + "),
        "code": code(device, kernels[0]),
        "extents": plans[0].shape.to_string(),
        "grid": plans[0].grid,
        "splits": plans[0].splits,
        "rows": case.rows(),
        "context": case.context(),
        "us": { "median": us, "best": timing.best_us },
        "gb_per_s": bytes / us / 1e3,
        "tflop_per_s": flops / us / 1e6,
        "limit": limit,
        "share": share,
    })
}

/// Bytes and floating-point operations of `plans`.
fn work(plans: &[LaunchPlan]) -> (f64, f64) {
    let bytes = plans.iter().map(|plan| plan.bytes).sum::<u64>();
    let flops = plans.iter().map(|plan| plan.flops).sum::<u64>();
    (bytes as f64, flops as f64)
}

/// The limit that `plans` work under at these rates, and the share of it that `us` is.
fn share(
    plans: &[LaunchPlan],
    us: f64,
    read_gb_per_s: f64,
    matrix_tflops: f64,
) -> (&'static str, f64) {
    let (bytes, flops) = work(plans);
    let (read_us, matrix_us) = (bytes / read_gb_per_s / 1e3, flops / matrix_tflops / 1e6);
    let limit = if read_us > matrix_us { "read bandwidth" } else { "matrix rate" };
    (limit, read_us.max(matrix_us) / us)
}

/// The code of `kernel` that the device ran: figures of PTX compiled by the driver must not pass
/// for those of the cubin.
fn code(device: &Device, kernel: &str) -> Option<String> {
    let launched = device.launched().into_iter().find(|(name, _)| *name == kernel);
    launched.map(|(_, code)| match code {
        Code::Cubin(target) => format!("{} cubin", target.name()),
        Code::Ptx => "sm_80 PTX, compiled by the driver".into(),
    })
}
