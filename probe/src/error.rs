//! Errors of the files, each one line: file, part, expected, found.

use std::fmt;

/// Error of a file that could not be read or has invalid contents.
#[derive(Debug)]
pub enum Error {
    /// The file could not be read.
    Io {
        /// Path of the file.
        file: String,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A part of the file is invalid.
    Content {
        /// Path or name of the file.
        file: String,
        /// The tensor, metadata key or part concerned.
        what: String,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { file, cause } => write!(f, "{file}: {cause}"),
            Error::Content { file, what, expected, found } => {
                write!(f, "{file}: {what}: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { cause, .. } => Some(cause),
            Error::Content { .. } => None,
        }
    }
}
