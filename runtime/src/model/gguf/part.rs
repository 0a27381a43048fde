//! Names of models in several files.

use std::path::{Path, PathBuf};

/// The name of one of several files.
pub(in crate::model) struct GgufPart<'a> {
    /// Name of the model, before the numbers.
    stem: &'a str,
    /// Number of the part, from 1.
    pub(in crate::model) index: usize,
    /// Number of parts.
    pub(super) count: usize,
}

impl<'a> GgufPart<'a> {
    /// Reads a name such as `NAME-00001-of-00003.gguf`; `None` for another one.
    pub(in crate::model) fn of(file: &'a Path) -> Option<Self> {
        let number = |digits: &str| {
            let is_number = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse::<usize>().ok())?
        };
        let name = file.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, index) = rest.rsplit_once('-')?;
        let (index, count) = (number(index)?, number(count)?);
        (1..=count).contains(&index).then_some(GgufPart { stem, index, count })
    }

    /// The path of part `index`, beside `file`.
    pub(super) fn path(&self, file: &Path, index: usize) -> PathBuf {
        file.with_file_name(format!("{}-{index:05}-of-{:05}.gguf", self.stem, self.count))
    }
}
