//! Definitions that every crate of the workspace shares, without dependencies: CPU instruction sets
//! ([`isa`]) and their vector registers ([`simd`]), seeded random numbers ([`rng`]) and statistics
//! of samples ([`stats`]).

pub mod isa;
pub mod rng;
pub mod simd;
pub mod stats;

pub use isa::Isa;
pub use rng::Rng;
