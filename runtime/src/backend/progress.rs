//! Progress of a backend's start: kernels that the driver compiles, weight upload, graph capture.

/// A point in the start of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage, a plural noun: `kernels`, `weights`, `graphs`.
    pub what: &'static str,
    /// Units done: bytes of weights, files of kernels, or graphs.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}
