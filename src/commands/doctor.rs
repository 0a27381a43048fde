//! `trail-rt doctor`: hardware of this machine, and the defaults chosen for it.

use serde_json::{Value, json};
use trail_base::Memory;
use trail_ptx::Target;
use trail_runtime::cpu::{Isa, bf16_products, byte_products};
use trail_runtime::cuda::inventory::{self, Found};
use trail_runtime::engine::ComputeDevice;
use trail_setup::machine;
use trail_setup::{Device, Error, Output};

/// Prints the report.
pub fn run(json: bool) -> Result<(), Error> {
    let report = Report::gather();
    let mut output = Output::stdout();
    match json {
        true => output.line(&report.json().to_string()),
        false => report.lines().iter().try_for_each(|line| output.line(line)),
    }
}

/// Hardware found and defaults chosen.
struct Report {
    cores: usize,
    /// Number of NUMA nodes; `None` where the system does not list nodes.
    numa_nodes: Option<usize>,
    memory: Option<Memory>,
    simd: Vec<&'static str>,
    /// GPUs, or the reason why there are none.
    gpus: Result<Vec<Found>, String>,
    /// Device chosen by `--device auto`.
    device: ComputeDevice,
    /// Instruction set chosen by `--isa auto`.
    isa: Isa,
    /// Instruction of products with quantized weights, in 8 bits.
    byte_products: &'static str,
    /// Instruction of products with bf16 weights; `None`: in f32.
    bf16_products: Option<&'static str>,
    demo_model: Option<String>,
}

impl Report {
    fn gather() -> Self {
        Report {
            cores: trail_base::available_threads(),
            numa_nodes: machine::numa_nodes(),
            memory: Memory::read(),
            simd: machine::simd(),
            gpus: inventory::devices().map_err(|error| error.to_string()),
            device: Device::Auto.resolve(),
            demo_model: trail_setup::demo_model().ok().map(|folder| folder.display().to_string()),
            isa: Isa::detect(),
            byte_products: byte_products(Isa::Auto).expect("auto is what this CPU has"),
            bf16_products: bf16_products(Isa::Auto),
        }
    }

    fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "numa_nodes": self.numa_nodes,
            "memory_bytes": self.memory.map(|memory| memory.total_bytes),
            "available_bytes": self.memory.map(|memory| memory.available_bytes),
            "simd": self.simd,
            "gpus": self.gpus.iter().flatten().map(gpu_json).collect::<Vec<_>>(),
            "gpu_error": self.gpus.as_ref().err(),
            "demo_model": self.demo_model,
            "uses": {
                "device": self.device.to_string(),
                "isa": self.isa.to_string(),
                "byte_products": self.byte_products,
                "bf16_products": self.bf16_products,
                "threads": self.cores,
            },
        })
    }

    fn lines(&self) -> Vec<String> {
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
        let memory = self.memory.map_or("unknown".into(), |memory| {
            format!("{}, available {}", gib(memory.total_bytes), gib(memory.available_bytes))
        });
        let nodes = self.numa_nodes.map_or("unknown".into(), |nodes| nodes.to_string());
        let gpus = match &self.gpus {
            Err(why) => vec![format!("none: {why}")],
            Ok(gpus) if gpus.is_empty() => vec!["none".into()],
            Ok(gpus) => gpus.iter().map(|gpu| gpu_line(gpu, gib)).collect(),
        };
        let kernels = format!(
            "{} kernels ({} for quantized weights{}), {} threads",
            self.isa,
            self.byte_products,
            self.bf16_products.map(|name| format!(", {name} for bf16")).unwrap_or_default(),
            self.cores
        );
        let uses = match self.device {
            ComputeDevice::Cpu => format!("cpu, {kernels}"),
            gpu => format!("{gpu} (--device cpu: {kernels})"),
        };
        let missing = "not found: give a model with --model PATH";
        let head = [
            format!("cores        {}, NUMA nodes {nodes}", self.cores),
            format!("memory       {memory}"),
            format!("SIMD         {}", self.simd.join(" ")),
        ];
        let tail = [
            format!("demo model   {}", self.demo_model.as_deref().unwrap_or(missing)),
            format!("will be used {uses}"),
        ];
        let gpus = gpus.into_iter().map(|gpu| format!("GPU          {gpu}"));
        head.into_iter().chain(gpus).chain(tail).collect()
    }
}

/// Kind of code that `gpu` runs: cubin or PTX.
fn code(gpu: &Found) -> &'static str {
    gpu.target().map_or("PTX, compiled by the driver", Target::name)
}

fn gpu_json(gpu: &Found) -> Value {
    json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "compute": format!("{}.{}", gpu.compute.0, gpu.compute.1),
        "multiprocessors": gpu.multiprocessors,
        "code": code(gpu),
    })
}

fn gpu_line(gpu: &Found, gib: impl Fn(u64) -> String) -> String {
    format!(
        "cuda:{} {}, {}, {} multiprocessors, compute {}.{}, code: {}",
        gpu.ordinal,
        gpu.name,
        gib(gpu.memory_bytes as u64),
        gpu.multiprocessors,
        gpu.compute.0,
        gpu.compute.1,
        code(gpu)
    )
}
