//! Memory that this process can use: the machine's, and within it the limit of its control group
//! and of its address space.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory of the machine, or what limits let this process use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Installed memory, or the control group's limit if that is lower, bytes.
    pub total_bytes: u64,
    /// Memory that can be allocated now without swapping, bytes.
    pub available_bytes: u64,
}

/// File names of a version of control groups.
struct GroupFiles {
    /// Mount point of the memory controller.
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Keys in memory.stat: page cache, which the kernel takes back before it kills.
    cache: [&'static str; 2],
}

const V2: GroupFiles = GroupFiles {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cache: ["inactive_file", "active_file"],
};
const V1: GroupFiles = GroupFiles {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};

impl Memory {
    /// Reads /proc and /sys/fs/cgroup; `None` but on Linux.
    pub fn read() -> Option<Memory> {
        // Asked for, as Wine shows a program for Windows the folders of Linux.
        if cfg!(target_os = "linux") { Memory::read_under(Path::new("/")) } else { None }
    }

    /// The same below another root folder.
    fn read_under(root: &Path) -> Option<Memory> {
        let text = |file: &str| fs::read_to_string(root.join(file)).ok();
        let meminfo = text("proc/meminfo")?;
        let mut memory = Memory {
            total_bytes: kib(&meminfo, "MemTotal:")?,
            available_bytes: kib(&meminfo, "MemAvailable:")?,
        };
        for group in groups(root, &text("proc/self/cgroup").unwrap_or_default()) {
            memory.total_bytes = memory.total_bytes.min(group.total_bytes);
            memory.available_bytes = memory.available_bytes.min(group.available_bytes);
        }
        let limits = text("proc/self/limits").unwrap_or_default();
        if let Some(limit) = number(&limits, "Max address space") {
            let status = text("proc/self/status").unwrap_or_default();
            let left = limit.saturating_sub(kib(&status, "VmSize:").unwrap_or(0));
            memory.available_bytes = memory.available_bytes.min(left);
        }
        Some(memory)
    }
}

/// The limits of the control groups that hold this process, whose `/proc/self/cgroup` is `listed`:
/// its own and those around it. A limit that is not set counts as none or as a huge one.
fn groups(root: &Path, listed: &str) -> Vec<Memory> {
    let mut found = Vec::new();
    for line in listed.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let files = match controllers {
            "" => V2,
            list if list.split(',').any(|name| name == "memory") => V1,
            _ => continue,
        };
        let mount = root.join(files.mount);
        // Where the container sees its own group as the mount point, the path leads nowhere, and
        // the last of its ancestors is the group.
        let own = mount.join(path.trim_start_matches('/'));
        let ancestors = own.ancestors().take_while(|folder| folder.starts_with(&mount));
        found.extend(ancestors.filter_map(|folder| group(folder.to_path_buf(), &files)));
    }
    found
}

/// The limit of one control group; `None` if it has none.
fn group(folder: PathBuf, files: &GroupFiles) -> Option<Memory> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let bytes = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let limit = bytes(files.limit)?;
    let stat = read("memory.stat").unwrap_or_default();
    let cache: u64 = files.cache.iter().filter_map(|key| number(&stat, &format!("{key} "))).sum();
    let used = bytes(files.usage)?.saturating_sub(cache);
    Some(Memory { total_bytes: limit, available_bytes: limit.saturating_sub(used) })
}

/// The first number of the line that starts with `key`.
fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// As [`number`], for lines that count in KiB.
fn kib(text: &str, key: &str) -> Option<u64> {
    number(text, key).map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A root folder with 16 GiB of memory, 8 GiB of it available, and `files`.
    fn root(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("trail-memory-{}-{name}", std::process::id()));
        let meminfo = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n";
        for (file, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("created");
            fs::write(file, text).expect("written");
        }
        root
    }

    fn read(name: &str, files: &[(&str, &str)]) -> [u64; 2] {
        let root = root(name, files);
        let memory = Memory::read_under(&root).expect("meminfo");
        fs::remove_dir_all(root).expect("the test's own folder");
        [memory.total_bytes / MIB, memory.available_bytes / MIB]
    }

    #[test]
    fn without_limits_the_machine_counts() {
        assert_eq!(read("plain", &[]), [16384, 8192]);
        let unlimited = [
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "5\n"),
            ("proc/self/limits", "Max address space         unlimited   unlimited   bytes\n"),
        ];
        assert_eq!(read("unlimited", &unlimited), [16384, 8192]);
        assert_eq!(Memory::read_under(Path::new("/nonexistent")), None);
    }

    #[test]
    fn the_tightest_group_of_version_2_counts_without_its_page_cache() {
        let files = [
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.current", "943718400\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 209715200\nactive_file 0\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/pod/box/memory.current", "0\n"),
        ];
        assert_eq!(read("v2", &files), [1024, 1024 - (900 - 200)]);
    }

    #[test]
    fn a_group_of_version_1_is_found_at_its_mount_point_too() {
        let groups = "5:cpu,cpuacct:/docker/f00\n4:memory:/docker/f00\n";
        let files = [
            ("proc/self/cgroup", groups),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n"),
        ];
        assert_eq!(read("v1", &files), [512, 512 - 50]);
    }

    #[test]
    fn an_address_space_limit_counts_beyond_what_is_mapped() {
        let files = [
            ("proc/self/limits", "Max address space         3221225472   unlimited   bytes\n"),
            ("proc/self/status", "Name:\tx\nVmSize:\t 1048576 kB\n"),
        ];
        assert_eq!(read("address-space", &files), [16384, 2048]);
    }

    #[test]
    fn this_machine_has_memory() {
        if cfg!(target_os = "linux") && !cfg!(miri) {
            let memory = Memory::read().expect("/proc/meminfo");
            assert!(memory.available_bytes <= memory.total_bytes && memory.available_bytes > 0);
        }
    }
}
