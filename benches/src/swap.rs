//! `bench swap`: KV blocks at random places of the pool to the host and back, as a share of the
//! largest copy's rate.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use cudarc::driver::{CudaStream, result};
use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error as Failure};
use trail_platform::Rng;
use trail_platform::stats::median;
use trail_runtime::backend::{Fault, Transfers};
use trail_runtime::cuda::{Device, KvPool, Priority, Swap, SwapOptions};
use trail_runtime::engine::ComputeDevice;
use trail_runtime::model::ModelConfig;
use trail_scheduler::Copies;

use crate::link::{Direction, Link};

/// The request that owns the blocks.
const REQUEST: u32 = 0;

/// Options of `bench swap`.
#[derive(Args, Clone, Debug)]
pub struct SwapArgs {
    /// KV blocks of this model: tiny, demo, llama3.2-1b or llama3-8b
    #[arg(long, default_value = "llama3-8b")]
    shape: String,
    /// Blocks of one transfer
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,
    /// Blocks of the pool, at least twice as many
    #[arg(long, default_value_t = 4096)]
    pool_blocks: u32,
    /// Measurements of each figure; the median is reported
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

/// Measures both directions.
pub fn run(args: &SwapArgs, engine: &EngineArgs) -> Result<Value, Failure> {
    let config = ModelConfig::named(&args.shape).map_err(Failure::usage)?;
    if args.pool_blocks / 2 < args.blocks {
        return Err(Failure::usage("--pool-blocks must be at least twice --blocks"));
    }
    let ordinal = match engine.device() {
        ComputeDevice::Cuda { ordinal } => ordinal,
        // The CPU backend does not swap; without a GPU, opening the device fails.
        ComputeDevice::Cpu => 0,
    };
    let device = Device::open(ordinal).map_err(|error| error.to_string())?;
    Ok(measure(args, &config, &Arc::new(device)).map_err(|error| error.to_string())?)
}

/// Measurements of one direction.
#[derive(Default)]
struct TransferStats {
    /// Time of each transfer, seconds.
    seconds: Vec<f64>,
    /// Rate of the largest copy just before, GB/s.
    link: Vec<f64>,
    /// Rate of the transfer over that of the largest copy.
    shares: Vec<f64>,
}

impl TransferStats {
    fn push(&mut self, bytes: usize, seconds: f64, link_gb_per_s: f64) {
        self.seconds.push(seconds);
        self.link.push(link_gb_per_s);
        self.shares.push(bytes as f64 / seconds / 1e9 / link_gb_per_s);
    }

    fn report(&self, bytes: usize) -> Value {
        let seconds = median(&self.seconds);
        json!({
            "ms": seconds * 1e3,
            "gb_per_s": bytes as f64 / seconds / 1e9,
            "largest_copy_gb_per_s": median(&self.link),
            "share": median(&self.shares),
        })
    }
}

/// A KV pool and the transfers of its blocks.
struct Bench {
    // Dropped in this order.
    swap: Swap,
    pool: KvPool,
    compute: Arc<CudaStream>,
    draw: Rng,
}

fn measure(
    args: &SwapArgs,
    config: &ModelConfig,
    device: &Arc<Device>,
) -> Result<Value, Box<dyn Error>> {
    let pool = KvPool::new(device, config, Some(args.pool_blocks as usize), 0)?;
    let (block_bytes, bytes) = (pool.block_bytes(), args.blocks as usize * pool.block_bytes());
    let mut link = Link::new(device, bytes)?;
    let compute = device.stream(Priority::High)?;
    let options = SwapOptions { host_blocks: args.blocks, max_requests: 1, checksums: false };
    let swap = Swap::new(device, &compute, &pool, options)?;
    let mut bench = Bench { swap, pool, compute, draw: Rng::new(1) };
    let host: Vec<u32> = (0..args.blocks).collect();
    let (mut out, mut back) = (TransferStats::default(), TransferStats::default());
    // The first round warms up.
    for repeat in 0..=args.repeats {
        let places = bench.draw.permutation(args.pool_blocks);
        let (from, rest) = places.split_at(args.blocks as usize);
        let to = &rest[..args.blocks as usize];
        let seed = u64::from(repeat) << 32;
        bench.write(from, Some(seed))?;
        let rates = [link.gb_per_s(Direction::Out)?, link.gb_per_s(Direction::In)?];
        let copies = |device| Copies { device, host: &host };
        let seconds_out = bench.transfer(|swap| swap.swap_out(REQUEST, copies(from)))?;
        // Zeros: what the check reads afterwards must come from the host.
        bench.write(from, None)?;
        let seconds_back = bench.transfer(|swap| swap.swap_in(REQUEST, copies(to)))?;
        bench.check(to, seed)?;
        if repeat > 0 {
            out.push(bytes, seconds_out, rates[0]);
            back.push(bytes, seconds_back, rates[1]);
        }
    }
    Ok(json!({
        "device": device.context().name()?,
        "shape": args.shape,
        "block_bytes": block_bytes,
        "blocks": args.blocks,
        "pool_blocks": args.pool_blocks,
        "block_us_at_start": bench.swap.block_s() * 1e6,
        "out": out.report(bytes),
        "in": back.report(bytes),
        "checked_blocks": args.blocks * (args.repeats + 1),
    }))
}

impl Bench {
    /// Seconds from the request of a transfer to the report that it has completed.
    fn transfer(
        &mut self,
        begin: impl FnOnce(&mut Swap) -> Result<(), Fault>,
    ) -> Result<f64, Box<dyn Error>> {
        self.compute.synchronize()?;
        let mut ended = Vec::with_capacity(1);
        let start = Instant::now();
        begin(&mut self.swap)?;
        while ended.is_empty() {
            self.swap.finished(&mut ended)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Fills each block with its own words, derived from `seed`, or with zeros.
    fn write(&self, blocks: &[u32], seed: Option<u64>) -> Result<(), Box<dyn Error>> {
        for (index, &block) in blocks.iter().enumerate() {
            let content = match seed {
                Some(seed) => content(seed + index as u64, self.pool.block_bytes()),
                None => vec![0; self.pool.block_bytes() / 8],
            };
            // SAFETY: as long as a block; nothing else uses the pool now, and the call waits.
            unsafe { result::memcpy_htod_sync(self.pool.block_at(block).address(), &content)? };
        }
        Ok(())
    }

    /// Fails if a block does not hold the words written before the swap.
    fn check(&self, blocks: &[u32], seed: u64) -> Result<(), Box<dyn Error>> {
        let mut found = vec![0_u64; self.pool.block_bytes() / 8];
        for (index, &block) in blocks.iter().enumerate() {
            // SAFETY: as long as a block; all that writes it has ended.
            unsafe { result::memcpy_dtoh_sync(&mut found, self.pool.block_at(block).address())? };
            if found != content(seed + index as u64, self.pool.block_bytes()) {
                return Err(format!("block {index} came back changed").into());
            }
        }
        Ok(())
    }
}

/// The words of one block, different for each seed.
fn content(seed: u64, bytes: usize) -> Vec<u64> {
    let first = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..bytes as u64 / 8)
        .map(|word| first.wrapping_add(word.wrapping_mul(0xbf58_476d_1ce4_e5b9)))
        .collect()
}
