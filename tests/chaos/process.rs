//! Resources of a process, from `/proc`.

use std::fs;

use crate::common::Server;

/// Resources of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resources {
    pub(crate) threads: usize,
    /// Open file descriptors.
    pub(crate) files: usize,
    pub(crate) resident_bytes: u64,
}

impl Resources {
    /// As the kernel counts them now.
    pub(crate) fn of(server: &Server) -> Resources {
        let path = format!("/proc/{}", server.pid());
        let entries =
            |name: &str| fs::read_dir(format!("{path}/{name}")).expect("the server runs").count();
        let status = fs::read_to_string(format!("{path}/status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).expect("resident KiB");
        Resources {
            threads: entries("task"),
            files: entries("fd"),
            resident_bytes: kib.trim().parse::<u64>().expect("a number") << 10,
        }
    }
}
