//! Errors of loading a model.

use std::fmt;
use std::path::{Path, PathBuf};

use trail_platform::quote::{escape, quote};

/// An error of loading a model: one line with place, expectation, finding and remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file at fault.
    pub file: PathBuf,
    /// The key, tensor or part of the file at fault.
    pub item: String,
    /// Accepted values.
    pub expected: String,
    /// Value found.
    pub found: String,
    /// Suggested remedy.
    pub remedy: String,
}

impl LoadError {
    /// Creates an error about `item` in `file`.
    pub fn new(
        file: &Path,
        item: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        LoadError {
            file: file.to_path_buf(),
            item: item.into(),
            expected: expected.into(),
            found: found.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display().to_string();
        write!(f, "{}: {}: expected {}", escape(&file), quote(&self.item), quote(&self.expected))?;
        write!(f, ", found {}; {}", quote(&self.found), self.remedy)
    }
}

impl std::error::Error for LoadError {}
