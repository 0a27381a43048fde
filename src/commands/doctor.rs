//! `trail-rt doctor`: hardware of this machine, and the defaults chosen for it.

use clap::Args;
use serde_json::{Value, json};
use trail_cli::machine;
use trail_cli::{EngineArgs, Error, ModelArgs, Output};
use trail_platform::topology::ranges;
use trail_platform::{Memory, Topology, printable_line};
use trail_ptx::Target;
use trail_runtime::cpu::{Isa, bf16_products, byte_products, placement};
use trail_runtime::cuda::inventory::{self, DriverVersion, Found, LEAST_DRIVER};
use trail_runtime::engine::ComputeDevice;

use super::doctor_gpu;

/// Options of `doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Check that the GPU works, from its driver to whole answers, in about a minute
    #[arg(long)]
    pub gpu: bool,
    /// Run one of these checks in this process.
    #[arg(long, hide = true, value_name = "NAME", conflicts_with = "gpu")]
    pub gpu_check: Option<String>,
    /// Steps that the last check of steps replays.
    #[arg(long, hide = true, value_name = "N", default_value_t = 1000)]
    pub replays: u32,
    /// Factor of the checks' time limits, for an emulated device.
    #[arg(long, hide = true, value_name = "N", default_value_t = 1)]
    pub limit_factor: u32,
}

/// Prints the report, or checks the GPU.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &DoctorArgs,
    json: bool,
) -> Result<(), Error> {
    if args.gpu {
        return doctor_gpu::run(args.limit_factor, json);
    }
    if let Some(name) = &args.gpu_check {
        let found = trail_bench::check_gpu(name, model, engine, args.replays)?;
        return Output::stdout().line(&found.to_string());
    }
    let report = Report::gather(engine.device());
    let mut output = Output::stdout();
    match json {
        true => output.line(&report.json().to_string()),
        false => report.lines().iter().try_for_each(|line| output.line(&printable_line(line))),
    }
}

/// Hardware found and defaults chosen.
struct Report {
    cores: usize,
    /// Cores and NUMA nodes; `None` where the system does not list them.
    topology: Option<Topology>,
    /// CPUs of pinned threads, or the reason why they cannot be pinned.
    pinned: Result<Vec<usize>, String>,
    memory: Option<Memory>,
    /// The reason if the kernel gives no huge pages.
    huge_pages: Result<(), String>,
    simd: Vec<&'static str>,
    /// Version of CUDA that the GPU's driver has; `None` without one.
    driver: Option<DriverVersion>,
    /// GPUs, or the reason why there are none.
    gpus: Result<Vec<Found>, String>,
    /// Device that `--device` selects.
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
    fn gather(device: ComputeDevice) -> Self {
        let cores = trail_platform::available_threads();
        Report {
            cores,
            topology: Topology::read().ok(),
            pinned: placement(cores).map(|cpus| cpus.iter().map(|cpu| cpu.id).collect()),
            memory: Memory::read(),
            huge_pages: machine::huge_pages(),
            simd: machine::simd(),
            driver: inventory::driver_version().ok(),
            gpus: inventory::devices().map_err(|error| error.to_string()),
            device,
            demo_model: trail_cli::demo_model().ok().map(|folder| folder.display().to_string()),
            isa: Isa::detect(),
            byte_products: byte_products(Isa::Auto).expect("auto is what this CPU has"),
            bf16_products: bf16_products(Isa::Auto),
        }
    }

    fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "physical_cores": self.topology.as_ref().map(Topology::cores),
            "numa_nodes": self.topology.as_ref().map(Topology::nodes),
            "cpu_strict_cpus": self.pinned.as_ref().ok(),
            "cpu_strict_error": self.pinned.as_ref().err(),
            "huge_pages": self.huge_pages.is_ok(),
            "huge_pages_error": self.huge_pages.as_ref().err(),
            "memory_bytes": self.memory.map(|memory| memory.total_bytes),
            "available_bytes": self.memory.map(|memory| memory.available_bytes),
            "simd": self.simd,
            "cuda_driver": self.driver.map(|version| version.to_string()),
            "least_cuda_driver": LEAST_DRIVER.to_string(),
            "gpus": self.gpus.iter().flatten().map(|gpu| self.gpu_json(gpu)).collect::<Vec<_>>(),
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
        let (physical, nodes) = match &self.topology {
            Some(topology) => (topology.cores().to_string(), topology.nodes().to_string()),
            None => ("unknown".into(), "unknown".into()),
        };
        let pinned = match &self.pinned {
            Ok(cpus) => format!("on any CPU; --cpu-strict 1: on CPUs {}", ranges(cpus)),
            Err(why) => format!("on any CPU; no --cpu-strict 1: {why}"),
        };
        let huge_pages = match &self.huge_pages {
            Ok(()) => "for KV, activations and repacked weights".into(),
            Err(why) => format!("none, KV and repacked weights are read more slowly: {why}"),
        };
        let gpus = match &self.gpus {
            Err(why) => vec![format!("none: {why}")],
            Ok(gpus) if gpus.is_empty() => vec!["none".into()],
            Ok(gpus) => gpus.iter().map(|gpu| self.gpu_line(gpu, gib)).collect(),
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
            format!(
                "cores        {} for this process; of the machine: physical {physical}, NUMA nodes \
                 {nodes}",
                self.cores
            ),
            format!("threads      {pinned}"),
            format!("memory       {memory}"),
            format!("huge pages   {huge_pages}"),
            format!("SIMD         {}", self.simd.join(" ")),
        ];
        let tail = [
            format!("demo model   {}", self.demo_model.as_deref().unwrap_or(missing)),
            format!("will be used {uses}"),
        ];
        let gpus = gpus.into_iter().map(|gpu| format!("GPU          {gpu}"));
        let driver = self.driver.map(|version| {
            format!("GPU driver   CUDA {version}; the kernels need {LEAST_DRIVER} or newer")
        });
        head.into_iter().chain(gpus).chain(driver).chain(tail).collect()
    }

    /// The reason why the kernels cannot run on `gpu`, if any.
    fn refusal(&self, gpu: &Found) -> Option<String> {
        gpu.refusal(self.driver?)
    }

    fn gpu_json(&self, gpu: &Found) -> Value {
        json!({
            "ordinal": gpu.ordinal,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "compute": format!("{}.{}", gpu.compute.0, gpu.compute.1),
            "multiprocessors": gpu.multiprocessors,
            "code": code(gpu),
            "refused": self.refusal(gpu),
        })
    }

    fn gpu_line(&self, gpu: &Found, gib: impl Fn(u64) -> String) -> String {
        let code = match self.refusal(gpu) {
            Some(why) => format!("not used: {why}"),
            None => format!("code: {}", code(gpu)),
        };
        format!(
            "cuda:{} {}, {}, {} multiprocessors, compute {}.{}, {code}",
            gpu.ordinal,
            gpu.name,
            gib(gpu.memory_bytes as u64),
            gpu.multiprocessors,
            gpu.compute.0,
            gpu.compute.1,
        )
    }
}

/// Kind of code that `gpu` runs: cubin or PTX.
fn code(gpu: &Found) -> &'static str {
    gpu.target().map_or("PTX, compiled by the driver", Target::name)
}
