//! Pages of large buffers.

use trail_cpu_kernels::Aligned;

/// KV blocks and repacked weights are such buffers.
#[test]
#[cfg(target_os = "linux")]
fn a_buffer_asks_for_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let buffer = Aligned::reserved(1 << 22).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let flags = smaps.lines().find_map(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((first, end)) = range
            && let (Some(first), Some(end)) = (address(first), address(end))
        {
            inside = (first..end).contains(&(buffer.as_ptr() as usize));
        }
        line.strip_prefix("VmFlags:").filter(|_| inside)
    });
    let flags: Vec<&str> = flags.unwrap().split_whitespace().collect();
    assert!(flags.contains(&"hg"), "{flags:?}");
}
