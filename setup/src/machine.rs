//! NUMA nodes and instruction sets of the machine.

use std::fs;

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
        ("avx_vnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("avx512_vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    sets.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

/// Detected instruction sets: empty, as this architecture has only the portable kernels.
#[cfg(not(target_arch = "x86_64"))]
pub fn simd() -> Vec<&'static str> {
    Vec::new()
}
