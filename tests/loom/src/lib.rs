//! The runtime's lock-free structures, compiled from its sources with loom's atomics, and their
//! models: every interleaving, or all with a few preemptions where there would be too many.
//!
//! A separate crate, because `--cfg loom` would otherwise rebuild the whole runtime and its
//! dependencies for a test of one file:
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-loom --release`
//!
//! loom reports a deadlock where a wake-up is lost, and a race where two threads access a cell with
//! no order between them.
//!
//! Under Miri the crate is the structures on std's atomics, with their own tests: what Miri can run
//! of the runtime without its dependencies.
#![cfg(any(loom, miri))]

pub mod cuda;
#[cfg(loom)]
pub mod engine;
#[path = "../../../runtime/src/engine/event_log.rs"]
pub mod event_log;
#[cfg(loom)]
#[path = "../../../runtime/src/cpu/fork_join_latch.rs"]
#[cfg_attr(not(test), allow(dead_code, reason = "its models are tests"))]
mod fork_join_latch;
#[path = "../../../runtime/src/mpsc_ring.rs"]
pub mod mpsc_ring;
#[path = "../../../runtime/src/sync.rs"]
#[cfg_attr(miri, allow(dead_code, unused_imports, reason = "some models are loom's alone"))]
mod sync;

#[cfg(all(test, loom))]
mod latch_models;

/// In place of the runtime's contract with its backends.
#[cfg(loom)]
mod backend {
    #[derive(Debug)]
    pub(crate) struct Fault;
}

/// Runs every interleaving of `model` with at most `preemptions` switches away from a thread that
/// could go on.
#[cfg(all(test, loom))]
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
