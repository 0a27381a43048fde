//! The runtime's lock-free structures, compiled from its sources with loom's atomics.
//!
//! A crate of its own, because `--cfg loom` would otherwise rebuild the whole runtime and its
//! dependencies for a test of one file:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-loom --release`
#![cfg(loom)]

#[path = "../../runtime/src/engine/event_log.rs"]
pub mod event_log;
#[path = "../../runtime/src/mpsc_ring.rs"]
pub mod mpsc_ring;
#[path = "../../runtime/src/sync.rs"]
mod sync;
