//! CPUs of the machine: which share a physical core, and their NUMA nodes.

use std::fs;
use std::path::Path;

/// A hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The system's number.
    pub id: usize,
    /// The first CPU of its physical core.
    pub core: usize,
    /// Its NUMA node.
    pub node: usize,
}

/// The CPUs that are online, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// At least one.
    pub cpus: Vec<Cpu>,
}

impl Topology {
    /// The topology of this machine: by hwloc with the feature of that name, else by sysfs.
    pub fn read() -> Result<Topology, String> {
        #[cfg(feature = "hwloc")]
        return Topology::from_hwloc();
        #[cfg(not(feature = "hwloc"))]
        match cfg!(target_os = "linux") {
            true => Topology::from_sysfs(Path::new("/sys/devices/system")),
            false => Err("this system has no sysfs".into()),
        }
    }

    /// The same by a folder like `/sys/devices/system`. Without a list of nodes there is one.
    pub fn from_sysfs(folder: &Path) -> Result<Topology, String> {
        let online = list(&folder.join("cpu/online"))?;
        let nodes = nodes(&folder.join("node"));
        let cpu = |id: usize| {
            let topology = folder.join(format!("cpu/cpu{id}/topology"));
            // The second name is that of Linux before 5.3.
            let siblings = list(&topology.join("core_cpus_list"))
                .or_else(|why| list(&topology.join("thread_siblings_list")).map_err(|_| why))?;
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(&id)).map_or(0, |node| node.0);
            Ok(Cpu { id, core: siblings[0], node })
        };
        Ok(Topology { cpus: online.into_iter().map(cpu).collect::<Result<_, String>>()? })
    }

    /// The same by hwloc.
    #[cfg(feature = "hwloc")]
    pub fn from_hwloc() -> Result<Topology, String> {
        use hwlocality::object::types::ObjectType;
        use hwlocality::topology::builder::BuildFlags;
        let built = hwlocality::Topology::builder()
            .with_flags(BuildFlags::INCLUDE_DISALLOWED)
            .map_err(|error| format!("hwloc: {error}"))?
            .build()
            .map_err(|error| format!("hwloc: {error}"))?;
        let mut cpus: Vec<Cpu> = Vec::new();
        for unit in built.objects_with_type(ObjectType::PU) {
            let Some(id) = unit.os_index() else { continue };
            let core = unit.first_ancestor_with_type(ObjectType::Core);
            let core = core.and_then(|core| core.cpuset()?.first_set());
            let node = unit.nodeset().and_then(|set| set.first_set());
            cpus.push(Cpu {
                id,
                core: core.map_or(id, usize::from),
                node: node.map_or(0, usize::from),
            });
        }
        cpus.sort_by_key(|cpu| cpu.id);
        match cpus.is_empty() {
            true => Err("hwloc finds no CPU".into()),
            false => Ok(Topology { cpus }),
        }
    }

    /// Number of NUMA nodes with CPUs.
    pub fn nodes(&self) -> usize {
        count(self.cpus.iter().map(|cpu| cpu.node))
    }

    /// Number of physical cores.
    pub fn cores(&self) -> usize {
        count(self.cpus.iter().map(|cpu| cpu.core))
    }

    /// The CPUs of `mask` in the order in which threads take them: one of each core before its
    /// siblings, each time one node after the other, so that few threads have the memory of all
    /// nodes.
    pub fn placement(&self, mask: &[usize]) -> Vec<Cpu> {
        let allowed: Vec<Cpu> =
            self.cpus.iter().copied().filter(|cpu| mask.contains(&cpu.id)).collect();
        let before = |at: usize, same: &dyn Fn(usize) -> bool| (0..at).filter(|&i| same(i)).count();
        // Place of each CPU in its core, then among those of its node in the same place.
        let sibling: Vec<usize> = (0..allowed.len())
            .map(|at| before(at, &|i| allowed[i].core == allowed[at].core))
            .collect();
        let in_node = |at: usize| {
            before(at, &|i| sibling[i] == sibling[at] && allowed[i].node == allowed[at].node)
        };
        let mut order: Vec<usize> = (0..allowed.len()).collect();
        order.sort_by_cached_key(|&at| (sibling[at], in_node(at), allowed[at].node));
        order.into_iter().map(|at| allowed[at]).collect()
    }
}

/// Number of different values.
fn count(values: impl Iterator<Item = usize>) -> usize {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    values.dedup();
    values.len()
}

/// NUMA nodes with their CPUs.
fn nodes(folder: &Path) -> Vec<(usize, Vec<usize>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("node")?.parse().ok();
    let node = |entry: fs::DirEntry| {
        let number = number(entry.file_name().to_str()?)?;
        Some((number, list(&entry.path().join("cpulist")).ok()?))
    };
    entries.filter_map(node).collect()
}

/// The numbers in `file`, at least one: `0-3,8` for instance.
pub fn list(file: &Path) -> Result<Vec<usize>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok().filter(|&last| last < MAX_CPUS)?)
    };
    let ranges: Option<Vec<_>> = text.trim().split(',').map(range).collect();
    let numbers: Vec<usize> = ranges.into_iter().flatten().flatten().collect();
    match numbers.is_empty() {
        true => Err(format!("{}: {:?} is no list of CPUs", file.display(), text.trim())),
        false => Ok(numbers),
    }
}

/// More than any machine has.
const MAX_CPUS: usize = 1 << 16;

/// Numbers in sysfs's form, `0-3,8` for instance.
pub fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder like `/sys/devices/system` with `files`.
    fn sysfs(name: &str, files: &[(String, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("trail-cpus-{}-{name}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("created");
            fs::write(file, text).expect("written");
        }
        root
    }

    fn read(name: &str, files: &[(String, &str)]) -> Result<Topology, String> {
        let root = sysfs(name, files);
        let topology = Topology::from_sysfs(&root);
        fs::remove_dir_all(root).expect("the test's own folder");
        topology
    }

    /// Two nodes of two cores of two CPUs, numbered as Linux does: second CPUs of cores last.
    fn two_nodes(siblings: &str) -> Vec<(String, &'static str)> {
        let cores = ["0,4\n", "1,5\n", "2,6\n", "3,7\n"];
        let core = |id: usize| (format!("cpu/cpu{id}/topology/{siblings}"), cores[id % 4]);
        let mut files: Vec<_> = (0..8).map(core).collect();
        files.push(("cpu/online".into(), "0-7\n"));
        files.push(("node/node0/cpulist".into(), "0-1,4-5\n"));
        files.push(("node/node1/cpulist".into(), "2-3,6-7\n"));
        files.push(("node/online".into(), "0-1\n"));
        files
    }

    #[test]
    fn threads_take_cores_before_siblings_and_nodes_in_turn() {
        for siblings in ["core_cpus_list", "thread_siblings_list"] {
            let topology = read(siblings, &two_nodes(siblings)).expect("complete");
            assert_eq!(topology.cpus[6], Cpu { id: 6, core: 2, node: 1 });
            assert_eq!((topology.nodes(), topology.cores()), (2, 4));
            let order = |mask: &[usize]| -> Vec<usize> {
                topology.placement(mask).iter().map(|cpu| cpu.id).collect()
            };
            assert_eq!(order(&[0, 1, 2, 3, 4, 5, 6, 7]), [0, 2, 1, 3, 4, 6, 5, 7]);
            // The one CPU that is left of a core is no sibling; CPU 9 is not online.
            assert_eq!(order(&[9, 7, 5, 4, 1, 0]), [0, 7, 1, 4, 5]);
        }
    }

    #[test]
    fn without_nodes_there_is_one() {
        let mut files = two_nodes("core_cpus_list");
        files.retain(|(file, _)| !file.starts_with("node"));
        let topology = read("no-nodes", &files).expect("complete");
        assert_eq!(topology.nodes(), 1);
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() {
        let none = read("none", &[("cpu/kernel_max".into(), "7")]).unwrap_err();
        assert!(none.contains("cpu/online: No such file"), "{none}");
        let mut files = two_nodes("core_cpus_list");
        files.remove(3);
        let some = read("some", &files).unwrap_err();
        assert!(some.contains("cpu3/topology/core_cpus_list: No such file"), "{some}");
        for text in ["", "a-b", "3-1", "0-99999999999", "0,,1"] {
            let mut files = two_nodes("core_cpus_list");
            files.push(("cpu/online".into(), text));
            let damaged = read("damaged", &files).unwrap_err();
            assert!(damaged.contains("is no list of CPUs"), "{text}: {damaged}");
        }
    }

    #[test]
    fn numbers_are_printed_as_ranges() {
        assert_eq!(ranges(&[8, 0, 2, 1]), "0-2,8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn this_machine_has_cpus() {
        let topology = Topology::read().expect("sysfs");
        assert!((1..=topology.cpus.len()).contains(&topology.cores()));
    }

    #[test]
    #[cfg(feature = "hwloc")]
    fn hwloc_finds_what_sysfs_lists() {
        let sysfs = Topology::from_sysfs(Path::new("/sys/devices/system")).expect("sysfs");
        assert_eq!(Topology::from_hwloc().expect("hwloc"), sysfs);
    }
}
