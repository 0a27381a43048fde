//! What can be wrong with a file, in one line: which file, what in it, expected, found.

use std::fmt;

/// A file that could not be read, or is not what it should be.
#[derive(Debug)]
pub enum Error {
    /// The file could not be read.
    Io {
        /// Path of the file.
        file: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Something in the file is not what it should be.
    Content {
        /// Path or name of the file.
        file: String,
        /// The tensor, metadata key or part concerned.
        what: String,
        /// What should be there.
        expected: String,
        /// What is there.
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
