//! Definitions that every crate of the workspace shares, without dependencies but the optional
//! hwloc: CPU instruction sets ([`isa`]) and their vector registers ([`simd`]), cores and NUMA
//! nodes ([`topology`]), memory that can be used ([`memory`]), the heap's free pages ([`heap`]),
//! files read up to a bound ([`read`]), text of others within messages ([`quote`]) and on terminals
//! ([`mod@printable`]), seeded random numbers ([`rng`]), statistics of samples ([`stats`]), times
//! of an answer's tokens ([`delivery`]), and levels of settings, any three together
//! ([`covering`]).

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod covering;
pub mod delivery;
pub mod heap;
pub mod isa;
pub mod kendall;
pub mod memory;
pub mod printable;
pub mod quote;
pub mod read;
pub mod rng;
pub mod simd;
pub mod stats;
pub mod topology;

pub use isa::Isa;
pub use memory::Memory;
pub use printable::{printable, printable_line};
pub use rng::Rng;
pub use topology::{Cpu, Topology};

/// Number of hardware threads that this process may use; 1 if the system does not report it.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
