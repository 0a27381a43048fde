//! NUMA nodes and instruction sets of the machine.

use std::fs;

use trail_base::cpu_has;

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
        ("avx2", cpu_has!("avx2")),
        ("fma", cpu_has!("fma")),
        ("f16c", cpu_has!("f16c")),
        ("avx_vnni", cpu_has!("avxvnni")),
        ("avx512f", cpu_has!("avx512f")),
        ("avx512bw", cpu_has!("avx512bw")),
        ("avx512vl", cpu_has!("avx512vl")),
        ("avx512_vnni", cpu_has!("avx512vnni")),
        ("avx512_bf16", cpu_has!("avx512bf16")),
    ];
    sets.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

/// Detected instruction sets, out of those that the kernels use.
#[cfg(target_arch = "aarch64")]
pub fn simd() -> Vec<&'static str> {
    let sets =
        [("neon", cpu_has!("neon")), ("dotprod", cpu_has!("dotprod")), ("i8mm", cpu_has!("i8mm"))];
    sets.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

/// Detected instruction sets: empty, as this architecture has only the portable kernels.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn simd() -> Vec<&'static str> {
    Vec::new()
}
