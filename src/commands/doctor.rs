//! `trail-rt doctor`: what this machine has, and what will be used.

use std::fs;

use serde_json::{Value, json};
use trail_runtime::cpu::Isa;

use crate::commands::output::Output;
use crate::error::Error;
use crate::locate;

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
    memory_bytes: Option<u64>,
    available_bytes: Option<u64>,
    simd: Vec<&'static str>,
    /// What `--isa auto` means here.
    isa: Isa,
    demo_model: Option<String>,
}

impl Report {
    fn gather() -> Self {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Report {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            numa_nodes: numa_nodes(),
            memory_bytes: meminfo(&memory, "MemTotal:"),
            available_bytes: meminfo(&memory, "MemAvailable:"),
            simd: simd(),
            isa: if Isa::Avx2.is_available() { Isa::Avx2 } else { Isa::Portable },
            demo_model: locate::demo_model().ok().map(|folder| folder.display().to_string()),
        }
    }

    fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "numa_nodes": self.numa_nodes,
            "memory_bytes": self.memory_bytes,
            "available_bytes": self.available_bytes,
            "simd": self.simd,
            "demo_model": self.demo_model,
            "uses": { "device": "cpu", "isa": self.isa.to_string(), "threads": self.cores },
        })
    }

    fn lines(&self) -> Vec<String> {
        let gib = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
            None => "unknown".into(),
        };
        let nodes = self.numa_nodes.map_or("unknown".into(), |nodes| nodes.to_string());
        let missing = "not found: give a model with --model PATH";
        vec![
            format!("cores        {}, NUMA nodes {nodes}", self.cores),
            format!(
                "memory       {}, available {}",
                gib(self.memory_bytes),
                gib(self.available_bytes)
            ),
            format!("SIMD         {}", self.simd.join(" ")),
            format!("demo model   {}", self.demo_model.as_deref().unwrap_or(missing)),
            format!("will be used cpu, {} kernels, {} threads", self.isa, self.cores),
        ]
    }
}

/// A line of /proc/meminfo, which counts in KiB.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn numa_nodes() -> Option<usize> {
    let entries = fs::read_dir("/sys/devices/system/node").ok()?;
    let is_node = |name: &str| {
        let number = name.strip_prefix("node");
        number
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    Some(names.filter(|name| name.to_str().is_some_and(is_node)).count())
}

/// The instruction sets that matter here, of those the CPU has.
#[cfg(target_arch = "x86_64")]
fn simd() -> Vec<&'static str> {
    let sets = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    sets.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn simd() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       16 kB\nMemAvailable:    8 kB\n";
        assert_eq!(meminfo(text, "MemAvailable:"), Some(8192));
        assert_eq!(meminfo(text, "Swap:"), None);
    }
}
