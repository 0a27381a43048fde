//! The runtime's lock-free structures, compiled from its sources with loom's atomics, and their
//! models: every interleaving, or all with a few preemptions where there would be too many.
//!
//! A crate of its own, because `--cfg loom` would otherwise rebuild the whole runtime and its
//! dependencies for a test of one file:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-loom --release`
//!
//! loom reports a deadlock where a wake-up is lost, and a race where two threads access a cell with
//! no order between them.
#![cfg(loom)]

pub mod cuda;
pub mod engine;
#[path = "../../runtime/src/engine/event_log.rs"]
pub mod event_log;
#[path = "../../runtime/src/cpu/fork_join_latch.rs"]
#[cfg_attr(not(test), allow(dead_code, reason = "its models are tests"))]
mod fork_join_latch;
#[path = "../../runtime/src/mpsc_ring.rs"]
pub mod mpsc_ring;
#[path = "../../runtime/src/sync.rs"]
mod sync;

#[cfg(test)]
mod latch_models;

/// In place of the runtime's contract with its backends.
mod backend {
    #[derive(Debug)]
    pub(crate) struct Fault;
}

/// Runs every interleaving of `model` with at most `preemptions` switches away from a thread that
/// could go on.
#[cfg(test)]
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
