//! Rates of the chips that forecasts are made for.

use clap::ValueEnum;
use trail_ptx::Target;
use trail_runtime::cuda::plan::{Chip, LaunchPlan};

/// Floating-point operations of an HMMA (m16n8k16).
pub(super) const HMMA_FLOPS: f64 = 4096.0;

/// Chips with rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForecastChip {
    /// A100 of 80 GB, SXM
    A100,
    /// H100, SXM
    H100,
    /// H200
    H200,
}

/// Rates of a chip: what datasheets say, less what reading tests get of it.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// The chip that plans are made for.
    pub chip: Chip,
    /// Bytes of device memory read in a second.
    pub read_bytes_per_s: f64,
    /// Clock under load.
    pub clock_hz: f64,
    /// Latency of device memory under load, seconds.
    pub latency_s: f64,
    /// Clocks of an `mma.sync` m16n8k16 of bf16 on one scheduler.
    pub hmma_clocks: f64,
    /// Bytes that a multiprocessor reads from L2 in a clock while all do.
    pub l2_bytes_per_clock: f64,
    /// Seconds from a kernel's end to its successor's first load.
    pub launch_s: f64,
    /// The same where the successor may begin early (programmatic dependent launch).
    pub overlapped_launch_s: f64,
}

/// A100: 2,039 GB/s, 1.41 GHz, 312 TFLOP/s.
const A100: Rates = Rates {
    chip: Chip::A100,
    read_bytes_per_s: 1.80e12,
    clock_hz: 1.41e9,
    latency_s: 0.9e-6,
    hmma_clocks: 8.0,
    l2_bytes_per_clock: 45.0,
    launch_s: 2.4e-6,
    overlapped_launch_s: 2.4e-6,
};
/// H200: 4,800 GB/s, 989 TFLOP/s by wgmma; `mma.sync` reaches about 62 % of it.
const H200: Rates = Rates {
    chip: Chip::H200,
    read_bytes_per_s: 4.45e12,
    clock_hz: 1.75e9,
    latency_s: 1.0e-6,
    hmma_clocks: 6.4,
    l2_bytes_per_clock: 42.0,
    launch_s: 2.4e-6,
    overlapped_launch_s: 0.9e-6,
};

impl ForecastChip {
    /// Its rates.
    pub fn rates(self) -> Rates {
        match self {
            ForecastChip::A100 => A100,
            // The same chip with slower memory, 3,350 GB/s.
            ForecastChip::H100 => Rates { read_bytes_per_s: 3.10e12, ..H200 },
            ForecastChip::H200 => H200,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ForecastChip::A100 => "A100",
            ForecastChip::H100 => "H100",
            ForecastChip::H200 => "H200",
        }
    }
}

impl Rates {
    /// The rates of `chip`, with the read rate and the `mma.sync` rate measured on it.
    pub fn measured(chip: &Chip, read_gb_per_s: f64, mma_sync_tflops: f64) -> Rates {
        let of = if chip.target == Some(Target::Sm90a) { H200 } else { A100 };
        let products = mma_sync_tflops * 1e12 / HMMA_FLOPS;
        let schedulers = f64::from(chip.multiprocessors) * 4.0;
        Rates {
            chip: *chip,
            read_bytes_per_s: read_gb_per_s * 1e9,
            hmma_clocks: of.clock_hz * schedulers / products,
            ..of
        }
    }

    /// Bytes of device memory read in a second, in GB.
    pub fn read_gb_per_s(&self) -> f64 {
        self.read_bytes_per_s / 1e9
    }

    /// Floating-point operations of a multiprocessor's tensor cores in a clock.
    pub fn matrix_flops_per_clock(&self) -> f64 {
        if self.chip.target == Some(Target::Sm90a) { 4096.0 } else { 2048.0 }
    }

    /// Floating-point operations of all tensor cores in a second.
    pub fn matrix_flops_per_s(&self) -> f64 {
        self.matrix_flops_per_clock() * f64::from(self.chip.multiprocessors) * self.clock_hz
    }

    /// Matrix rate that the kernel of `plan` can reach, TFLOP/s.
    pub fn tflops(&self, plan: &LaunchPlan) -> f64 {
        let a_clock = if plan.kernel.contains("wgmma") {
            self.matrix_flops_per_clock()
        } else {
            HMMA_FLOPS * 4.0 / self.hmma_clocks
        };
        a_clock * f64::from(self.chip.multiprocessors) * self.clock_hz / 1e12
    }
}
