//! Definitions that every crate of the workspace shares, without dependencies but the optional
//! hwloc: CPU instruction sets ([`isa`]) and their vector registers ([`simd`]), cores and NUMA
//! nodes ([`topology`]), memory that can be used ([`memory`]), the heap's free pages ([`heap`]),
//! text of files within messages ([`quote`]) and from outside ([`printable`]), seeded random
//! numbers ([`rng`]) and statistics of samples ([`stats`]).

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod heap;
pub mod isa;
pub mod kendall;
pub mod memory;
pub mod printable;
pub mod quote;
pub mod rng;
pub mod simd;
pub mod stats;
pub mod topology;

pub use isa::Isa;
pub use memory::Memory;
pub use rng::Rng;
pub use topology::{Cpu, Topology};

/// Number of hardware threads that this process may use; 1 if the system does not report it.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
