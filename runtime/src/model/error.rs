//! Why a model cannot be loaded.

use std::fmt;
use std::path::{Path, PathBuf};

/// Characters of a value that a message repeats; the rest is cut.
const MAX_QUOTED: usize = 160;

/// A refusal to load: one line that says where, what was expected, what was found, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file at fault.
    pub file: PathBuf,
    /// The key, tensor or part of the file at fault.
    pub item: String,
    /// What would have been accepted.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What to do about it.
    pub remedy: String,
}

impl LoadError {
    /// A refusal of `item` in `file`.
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

/// `text` without line breaks and no longer than a line: the files are not ours, their content is
/// only quoted.
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
