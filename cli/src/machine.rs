//! Huge pages and instruction sets of the machine.

use std::fs;
use std::path::Path;

use trail_platform::cpu_has;

/// Fails with the reason if the kernel gives this process no huge pages where it asks for them: for
/// KV blocks, activations and repacked weights.
pub fn huge_pages() -> Result<(), String> {
    match cfg!(target_os = "linux") {
        true => huge_pages_under(Path::new("/")),
        false => Err("asked for on Linux alone".into()),
    }
}

/// The same below another root folder.
fn huge_pages_under(root: &Path) -> Result<(), String> {
    let file = "sys/kernel/mm/transparent_hugepage/enabled";
    let enabled =
        fs::read_to_string(root.join(file)).map_err(|error| format!("/{file}: {error}"))?;
    if enabled.contains("[never]") {
        return Err(format!("/{file} is never"));
    }
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let own = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    match own.map(str::trim) {
        Some("0") => Err("switched off for this process (PR_SET_THP_DISABLE)".into()),
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_gives_no_huge_pages_is_found() {
        let root = std::env::temp_dir().join(format!("trail-huge-pages-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("created");
            fs::write(file, text).expect("written");
        };
        let enabled = "sys/kernel/mm/transparent_hugepage/enabled";
        assert!(huge_pages_under(&root).unwrap_err().contains("enabled: No such file"));
        write(enabled, "always [madvise] never\n");
        assert_eq!(huge_pages_under(&root), Ok(()));
        write("proc/self/status", "Name:\tx\nTHP_enabled:\t1\n");
        assert_eq!(huge_pages_under(&root), Ok(()));
        write("proc/self/status", "Name:\tx\nTHP_enabled:\t0\n");
        assert!(huge_pages_under(&root).unwrap_err().contains("for this process"));
        write(enabled, "always madvise [never]\n");
        assert!(huge_pages_under(&root).unwrap_err().ends_with("enabled is never"));
        fs::remove_dir_all(root).expect("the test's own folder");
    }
}
