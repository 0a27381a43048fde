//! Memory, NUMA nodes and instruction sets of the machine.

use std::fs;

/// The machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Installed memory, bytes.
    pub total_bytes: u64,
    /// Memory that can be allocated now without swapping, bytes.
    pub available_bytes: u64,
}

impl Memory {
    /// Reads /proc/meminfo; `None` where there is none.
    pub fn read() -> Option<Memory> {
        Memory::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    /// Parses the lines of /proc/meminfo, which counts in KiB.
    fn parse(text: &str) -> Option<Memory> {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        };
        Some(Memory { total_bytes: bytes("MemTotal:")?, available_bytes: bytes("MemAvailable:")? })
    }
}

/// Number of NUMA nodes; `None` where sysfs does not list nodes.
pub fn numa_nodes() -> Option<usize> {
    let entries = fs::read_dir("/sys/devices/system/node").ok()?;
    let is_node = |name: &str| {
        let number = name.strip_prefix("node").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    Some(names.filter(|name| name.to_str().is_some_and(is_node)).count())
}

/// Detected instruction sets, out of those that the kernels use.
#[cfg(target_arch = "x86_64")]
pub fn simd() -> Vec<&'static str> {
    let sets = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    sets.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

/// Detected instruction sets: empty, as this architecture has only the portable kernels.
#[cfg(not(target_arch = "x86_64"))]
pub fn simd() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n";
        let memory = Memory { total_bytes: 16384, available_bytes: 8192 };
        assert_eq!(Memory::parse(text), Some(memory));
        assert_eq!(Memory::parse("MemTotal: 16 kB"), None);
    }
}
