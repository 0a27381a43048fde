//! CPU affinity of threads: the mask of this process, and threads on one CPU each.

use std::cell::Cell;
use std::sync::OnceLock;

use trail_platform::topology::ranges;
use trail_platform::{Cpu, Topology};

/// The CPUs of the first thread that asks for them, before any thread is pinned.
static ALLOWED: OnceLock<Option<Vec<usize>>> = OnceLock::new();

thread_local! {
    /// The CPU that this thread is pinned to.
    static PINNED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The CPUs of `threads` pinned threads: those of [`Topology::placement`] within the affinity mask
/// of this process.
pub fn placement(threads: usize) -> Result<Vec<Cpu>, String> {
    let allowed = allowed().ok_or("this system pins no threads: leave it out")?;
    let topology = Topology::read().map_err(|why| format!("{why}: leave it out"))?;
    place(&topology, allowed, threads)
}

fn place(topology: &Topology, allowed: &[usize], threads: usize) -> Result<Vec<Cpu>, String> {
    let mut cpus = topology.placement(allowed);
    if cpus.len() < threads {
        return Err(format!(
            "{threads} threads, but of the affinity mask of this process, {}, the system describes \
             {} CPUs: lower --threads, or widen the mask",
            ranges(allowed),
            cpus.len()
        ));
    }
    cpus.truncate(threads);
    Ok(cpus)
}

/// ` on CPUs 0-3` for pinned threads, with the number of NUMA nodes if there are several; empty for
/// others.
pub(crate) fn describe(cpus: &[Cpu]) -> String {
    let ids: Vec<usize> = cpus.iter().map(|cpu| cpu.id).collect();
    match (cpus.is_empty(), Topology { cpus: cpus.to_vec() }.nodes()) {
        (true, _) => String::new(),
        (_, 1) => format!(" on CPUs {}", ranges(&ids)),
        (_, nodes) => format!(" on CPUs {} of {nodes} NUMA nodes", ranges(&ids)),
    }
}

fn allowed() -> Option<&'static [usize]> {
    ALLOWED.get_or_init(system::get).as_deref()
}

/// Pins this thread to `cpu`, if it is not there already.
pub(super) fn pin(cpu: usize) -> Result<(), String> {
    if PINNED.get() == Some(cpu) {
        return Ok(());
    }
    system::set(&[cpu]).map_err(|error| {
        format!("no thread can run on CPU {cpu}: {error}: leave --cpu-strict out")
    })?;
    PINNED.set(Some(cpu));
    Ok(())
}

/// Gives this thread the mask of the process back, if it is pinned: threads that it starts would
/// otherwise share its CPU.
pub(super) fn release() {
    if PINNED.take().is_some()
        && let Some(allowed) = allowed()
    {
        // Where it fails the thread is slower, and as correct.
        let _ = system::set(allowed);
    }
}

/// Affinity of the calling thread.
#[cfg(target_os = "linux")]
mod system {
    use rustix::io::Errno;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) fn get() -> Option<Vec<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
    }

    pub(super) fn set(cpus: &[usize]) -> Result<(), Errno> {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set)
    }
}

/// Other systems have other interfaces.
#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn get() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn set(_cpus: &[usize]) -> Result<(), &'static str> {
        Err("this system pins no threads")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four CPUs on two cores.
    fn topology() -> Topology {
        Topology { cpus: (0..4).map(|id| Cpu { id, core: id / 2 * 2, node: 0 }).collect() }
    }

    #[test]
    fn a_mask_that_is_too_small_is_named() {
        let cpus = place(&topology(), &[0, 1, 2, 3], 3).unwrap();
        assert_eq!(cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), [0, 2, 1]);
        let refusal = place(&topology(), &[1, 2, 3], 4).unwrap_err();
        assert!(refusal.starts_with("4 threads, but of the affinity mask"), "{refusal}");
        assert!(
            refusal.contains("process, 1-3, the system describes 3 CPUs: lower --threads"),
            "{refusal}"
        );
    }

    #[test]
    fn pinned_threads_are_described() {
        let mut cpus = topology().cpus;
        assert_eq!(describe(&[]), "");
        assert_eq!(describe(&cpus), " on CPUs 0-3");
        cpus[3].node = 1;
        assert_eq!(describe(&cpus[1..]), " on CPUs 1-3 of 2 NUMA nodes");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_pinned_thread_gets_its_mask_back() {
        let before = allowed().unwrap();
        // A separate thread, as another test's thread must not inherit the CPU.
        let pinned = move || {
            pin(before[0]).unwrap();
            pin(before[0]).unwrap();
            let pinned = system::get();
            release();
            (pinned, system::get())
        };
        let (pinned, released) = std::thread::spawn(pinned).join().unwrap();
        assert_eq!(pinned.unwrap(), before[..1]);
        assert_eq!(released.unwrap(), before);
        // More CPUs than test machines have.
        assert!(pin(1023).is_err());
    }
}
