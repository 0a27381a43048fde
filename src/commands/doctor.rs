//! `trail-rt doctor`: what this machine has, and what will be used.

use serde_json::{Value, json};
use trail_runtime::cpu::Isa;

use crate::commands::output::Output;
use crate::error::Error;
use crate::locate;
use crate::machine::{self, Memory};

/// Prints the report.
pub fn run(json: bool) -> Result<(), Error> {
    let report = Report::gather();
    let mut output = Output::stdout();
    match json {
        true => output.line(&report.json().to_string()),
        false => report.lines().iter().try_for_each(|line| output.line(line)),
    }
}

/// What was found.
struct Report {
    cores: usize,
    /// NUMA nodes; `None` where the system does not tell.
    numa_nodes: Option<usize>,
    memory: Option<Memory>,
    simd: Vec<&'static str>,
    /// What `--isa auto` means here.
    isa: Isa,
    demo_model: Option<String>,
}

impl Report {
    fn gather() -> Self {
        Report {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            numa_nodes: machine::numa_nodes(),
            memory: Memory::read(),
            simd: machine::simd(),
            isa: if Isa::Avx2.is_available() { Isa::Avx2 } else { Isa::Portable },
            demo_model: locate::demo_model().ok().map(|folder| folder.display().to_string()),
        }
    }

    fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "numa_nodes": self.numa_nodes,
            "memory_bytes": self.memory.map(|memory| memory.total_bytes),
            "available_bytes": self.memory.map(|memory| memory.available_bytes),
            "simd": self.simd,
            "demo_model": self.demo_model,
            "uses": { "device": "cpu", "isa": self.isa.to_string(), "threads": self.cores },
        })
    }

    fn lines(&self) -> Vec<String> {
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
        let memory = self.memory.map_or("unknown".into(), |memory| {
            format!("{}, available {}", gib(memory.total_bytes), gib(memory.available_bytes))
        });
        let nodes = self.numa_nodes.map_or("unknown".into(), |nodes| nodes.to_string());
        let missing = "not found: give a model with --model PATH";
        vec![
            format!("cores        {}, NUMA nodes {nodes}", self.cores),
            format!("memory       {memory}"),
            format!("SIMD         {}", self.simd.join(" ")),
            format!("demo model   {}", self.demo_model.as_deref().unwrap_or(missing)),
            format!("will be used cpu, {} kernels, {} threads", self.isa, self.cores),
        ]
    }
}
