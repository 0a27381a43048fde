//! `bench load`: upload of the weights to the device, as a share of the link's rate.

mod sample;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::Error as Failure;
use trail_platform::stats::median;
use trail_runtime::cuda::weights::UploadPool;
use trail_runtime::cuda::{Device, DeviceWeights};
use trail_runtime::model::Model;

use crate::link::{Direction, Link};
use crate::model::BenchModel;

/// Options of `bench load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Uploading threads [default: 8, or as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    load_threads: Option<u16>,
    /// KiB of one chunk of the weights
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    piece_kib: u32,
    /// MiB of the copy that measures the link
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    link_mib: u32,
}

/// Measures the upload.
pub fn run(args: &LoadArgs, bench: &BenchModel) -> Result<Value, Failure> {
    let device = Device::open(bench.ordinal()).map_err(|error| error.to_string())?;
    Ok(measure(args, bench, &Arc::new(device)).map_err(|error| error.to_string())?)
}

fn measure(
    args: &LoadArgs,
    bench: &BenchModel,
    device: &Arc<Device>,
) -> Result<Value, Box<dyn Error>> {
    let model: &Model = &bench.model;
    let threads = args.load_threads.map_or(UploadPool::default().threads, usize::from);
    let team = UploadPool { threads, buffer_bytes: (args.piece_kib as usize) << 10 };
    let mut link = Link::new(device, (args.link_mib as usize) << 20)?;
    // Loading the kernels happens once per start and is not part of the upload.
    device.load_all()?;
    let (mut times, mut links, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bytes, mut resident, mut checked) = (0, 0, 0);
    for repeat in 0..=bench.repeats {
        let link_rate = link.gb_per_s(Direction::In)?;
        let start = Instant::now();
        let weights = DeviceWeights::upload_by(device, model, team, &mut |progress| {
            bytes = progress.total;
        })?;
        let elapsed = start.elapsed().as_secs_f64();
        // The first load warms the page cache.
        if repeat > 0 {
            times.push(elapsed);
            links.push(link_rate);
            shares.push(bytes as f64 / elapsed / 1e9 / link_rate);
        }
        if repeat == bench.repeats {
            (checked, resident) = (sample::check(model, &weights)?, weights.bytes);
        }
    }
    let (seconds, best) = (median(&times), times.iter().copied().fold(f64::INFINITY, f64::min));
    Ok(json!({
        "device": device.context().name()?,
        "model": bench.name,
        "dtype": format!("{:?}", model.weights.layers[0].q.dtype).to_lowercase(),
        "bytes": bytes,
        "device_bytes": resident,
        "threads": team.threads,
        "seconds": { "median": seconds, "best": best },
        "gb_per_s": bytes as f64 / seconds / 1e9,
        "link_gb_per_s": median(&links),
        "share_of_link": median(&shares),
        "checked_weights": checked,
    }))
}
