//! Errors of loading a model.

use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum number of characters of a quoted value; longer values are cut.
const MAX_QUOTED: usize = 160;

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
        write!(
            f,
            "{}: {}: expected {}",
            escape(&file),
            one_line(&self.item),
            one_line(&self.expected)
        )?;
        write!(f, ", found {}; {}", one_line(&self.found), self.remedy)
    }
}

impl std::error::Error for LoadError {}

/// Returns `text` without line breaks and at most one line long, as it may quote untrusted files.
fn one_line(text: &str) -> String {
    let mut chars = text.chars();
    let mut line = escape(&chars.by_ref().take(MAX_QUOTED).collect::<String>());
    if chars.next().is_some() {
        line.push_str("...");
    }
    line
}

/// `text` with control characters escaped.
fn escape(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
