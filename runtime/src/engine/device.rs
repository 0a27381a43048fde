//! Compute devices by name, and their defaults.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::cpu::{Compute, Isa};
use crate::cuda::{DEVICE_TIMEOUT, OrderChoice};

/// A compute device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeDevice {
    /// The CPU.
    #[default]
    Cpu,
    /// A CUDA device.
    Cuda {
        /// Ordinal of the device in the driver.
        ordinal: usize,
    },
}

impl ComputeDevice {
    /// Default of [`super::EngineConfig::max_running`].
    pub fn default_max_running(self) -> usize {
        match self {
            ComputeDevice::Cpu => 8,
            ComputeDevice::Cuda { .. } => 256,
        }
    }

    /// Default of [`super::EngineConfig::token_budget`]. On a GPU large enough to be bound by
    /// matrix units, and small enough that decodes beside a prompt do not wait for long.
    pub fn default_token_budget(self) -> usize {
        match self {
            ComputeDevice::Cpu => 512,
            ComputeDevice::Cuda { .. } => 2048,
        }
    }

    /// Default of [`super::EngineConfig::max_gap`]. On the CPU a full step of a long prompt takes
    /// seconds; on a GPU the token budget bounds it.
    pub fn default_max_gap(self) -> Duration {
        match self {
            ComputeDevice::Cpu => Duration::from_millis(300),
            ComputeDevice::Cuda { .. } => Duration::ZERO,
        }
    }
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ComputeDevice::Cpu => f.write_str("cpu"),
            ComputeDevice::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for ComputeDevice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let ordinal = match name {
            "cpu" => return Ok(ComputeDevice::Cpu),
            "cuda" => Some(0),
            other => other.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()),
        };
        let device = ordinal.map(|ordinal| ComputeDevice::Cuda { ordinal });
        device.ok_or_else(|| format!("unknown device '{name}': choose cpu, cuda or cuda:NUMBER"))
    }
}

/// Where the probe's predictions are computed, when a CUDA device runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeDevice {
    /// On the CPU, while the device works on the upper layers (TRAIL's way).
    #[default]
    Cpu,
    /// On the device, beside the upper layers.
    Gpu,
}

impl fmt::Display for ProbeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeDevice::Cpu => "cpu",
            ProbeDevice::Gpu => "gpu",
        })
    }
}

impl FromStr for ProbeDevice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "cpu" => Ok(ProbeDevice::Cpu),
            "gpu" => Ok(ProbeDevice::Gpu),
            other => Err(format!("unknown probe device '{other}': choose cpu or gpu")),
        }
    }
}

/// Use of the CPU by its backend; a GPU ignores it, but for `pin` and `repack`, which it refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSettings {
    /// Threads of the forward pass, the engine's own included; default: all cores.
    pub threads: Option<usize>,
    /// Pin each thread to its own CPU: see [`placement`](crate::cpu::placement).
    pub pin: bool,
    /// Instruction set of the kernels; default: the best that is safe to choose.
    pub isa: Isa,
    /// Arithmetic of products with quantized and bf16 weights.
    pub compute: Compute,
    /// Copy quantized weights into the order in which products read them: faster, for as much
    /// memory as they take in the file. Refused with [`Compute::Exact`].
    pub repack: bool,
}

/// How a CUDA device is used; nothing of it matters to the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSettings {
    /// Replay captured graphs for decode steps; otherwise launch kernel by kernel, with the same
    /// results.
    pub graphs: bool,
    /// Sum in the order of the shapes, so that an answer does not depend on the batch, or in the
    /// fastest for each number of rows.
    pub order: OrderChoice,
    /// Run all layers of a decode step of up to 4 requests in one launch, with the same results.
    pub megakernel: bool,
    /// Where the probe runs.
    pub probe: ProbeDevice,
    /// Threads that poll for tapped rows and run the probe.
    pub probe_threads: usize,
    /// Most pinned host memory for swapped KV blocks, bytes; 0: no swapping.
    pub host_kv_bytes: usize,
    /// Longest wait for the device: one that finishes no step in this time hangs, and the engine
    /// breaks down.
    pub device_timeout: Duration,
    /// Compare each swapped block's checksum when it comes back.
    pub checksums: bool,
}

impl Default for CudaSettings {
    fn default() -> Self {
        CudaSettings {
            graphs: true,
            order: OrderChoice::Fixed,
            megakernel: false,
            probe: ProbeDevice::Cpu,
            probe_threads: 2,
            host_kv_bytes: 4 << 30,
            device_timeout: DEVICE_TIMEOUT,
            checksums: cfg!(debug_assertions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for name in ["cpu", "cuda:0", "cuda:7"] {
            assert_eq!(name.parse::<ComputeDevice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(ComputeDevice::Cuda { ordinal: 0 }));
        for name in ["gpu", "cuda:", "cuda:-1", "cuda1", ""] {
            let error = name.parse::<ComputeDevice>().unwrap_err();
            assert!(error.contains("choose cpu, cuda"), "{error}");
        }
        for name in ["cpu", "gpu"] {
            assert_eq!(name.parse::<ProbeDevice>().unwrap().to_string(), name);
        }
        assert!("npu".parse::<ProbeDevice>().is_err());
    }
}
