//! CPUs near a device: those of the NUMA node that its slot belongs to.

use super::inventory;
use std::path::Path;
use trail_platform::topology;

/// CPUs near the device numbered `ordinal`; empty where the system does not list them.
pub(super) fn of_device(ordinal: usize) -> Vec<usize> {
    let folder = Path::new("/sys/bus/pci/devices");
    inventory::pci_id(ordinal).map(|id| listed(folder, &id)).unwrap_or_default()
}

/// The same by a folder of the devices' files.
fn listed(devices: &Path, id: &str) -> Vec<usize> {
    // The driver writes hexadecimal digits in capitals, the system does not.
    let file = devices.join(id.to_lowercase()).join("local_cpulist");
    topology::list(&file).unwrap_or_default()
}

/// Keeps the calling thread, of those CPUs that it may use, to `cpus`, if there are any. Where it
/// fails the thread is slower, and as correct.
#[cfg(target_os = "linux")]
pub(super) fn bind(cpus: &[usize]) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut near = CpuSet::new();
    let usable = |&&cpu: &&usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
    cpus.iter().filter(usable).for_each(|&cpu| near.set(cpu));
    if near.count() > 0 {
        let _ = sched_setaffinity(None, &near);
    }
}

/// CUDA runs on Linux alone.
#[cfg(not(target_os = "linux"))]
pub(super) fn bind(_cpus: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_of_a_slot_are_read_and_others_are_none() {
        let root = std::env::temp_dir().join(format!("trail-near-cpus-{}", std::process::id()));
        let device = root.join("0000:0a:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("local_cpulist"), "1-2,7\n").unwrap();
        assert_eq!(listed(&root, "0000:0A:00.0"), [1, 2, 7]);
        assert_eq!(listed(&root, "0000:0b:00.0"), [0usize; 0]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_keeps_to_the_cpus_that_it_may_use() {
        use rustix::thread::sched_getaffinity;
        let bound = |cpus: Vec<usize>| {
            let bind = move || {
                bind(&cpus);
                let set = sched_getaffinity(None).unwrap();
                (0..1024).filter(|&cpu| set.is_set(cpu)).collect::<Vec<usize>>()
            };
            std::thread::spawn(bind).join().unwrap()
        };
        let all = bound(Vec::new());
        assert_eq!(bound(vec![all[0], 1023]), all[..1]);
        // None that it may use.
        assert_eq!(bound(vec![1023]), all);
    }
}
