//! Plans of kernels that benchmarks and tests launch and no step does: ceilings, and the ladder.
//! Not in a build without the feature `low-level`.

pub mod ceiling;
pub mod ladder;
