//! Progress of a backend's start: weight upload and graph capture.

/// A point in the start of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage, a plural noun: `weights`, `graphs`.
    pub what: &'static str,
    /// Units done: bytes of weights, or graphs.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}
