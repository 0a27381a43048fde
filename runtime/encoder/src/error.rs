//! The error of loading or running an encoder.

use std::fmt;
use std::path::Path;

/// The reason for which an encoder cannot be used: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderError(pub String);

impl EncoderError {
    /// An error about `file`.
    pub(crate) fn of(file: &Path, why: String) -> EncoderError {
        EncoderError(format!("{}: {}", file.display(), why))
    }
}

impl fmt::Display for EncoderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EncoderError {}
