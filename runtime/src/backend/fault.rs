//! Breakdown of a backend.

use std::error::Error;
use std::fmt;

/// A backend broke down: one line with the operation and the cause. The backend cannot be used
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Fault {}
