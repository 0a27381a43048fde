//! Little-endian values read from the bytes of a file, none beyond its end.

use std::path::Path;

use crate::model::LoadError;

/// A position within the bytes of a GGUF file.
pub(super) struct Reader<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// Part of the file that is read, for messages.
    part: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, the content of `file`, from the start.
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Reader { file, bytes, at: 0, part: "header" }
    }

    /// Names the part of the file that is read from here on.
    pub(super) fn enter(&mut self, part: &'static str) {
        self.part = part;
    }

    /// Offset of the next byte.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Bytes left in the file.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], LoadError> {
        match self.bytes[self.at..].get(..len) {
            Some(bytes) => {
                self.at += len;
                Ok(bytes)
            }
            None => Err(self.refuse(
                format!("{len} bytes at offset {}", self.at),
                format!("{}: the file is cut short or damaged", self.left()),
            )),
        }
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// The next u32.
    pub(super) fn u32(&mut self) -> Result<u32, LoadError> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next u64.
    pub(super) fn u64(&mut self) -> Result<u64, LoadError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next u64 as a number of items of at least `item_bytes`, all in the file's rest.
    pub(super) fn count(&mut self, item_bytes: usize) -> Result<usize, LoadError> {
        let count = self.u64()?;
        let max = self.left() / item_bytes;
        usize::try_from(count).ok().filter(|&count| count <= max).ok_or_else(|| {
            self.refuse(format!("at most {max} items in the rest of the file"), count.to_string())
        })
    }

    /// The next string: a length and as many bytes of UTF-8.
    pub(super) fn text(&mut self) -> Result<&'a str, LoadError> {
        let at = self.at;
        let len = self.count(1)?;
        let bytes = self.bytes(len)?;
        std::str::from_utf8(bytes).map_err(|error| {
            self.refuse("text in UTF-8".into(), format!("{error} (string at offset {at})"))
        })
    }

    /// An error about the part that is read.
    pub(super) fn refuse(&self, expected: String, found: String) -> LoadError {
        LoadError::new(self.file, self.part, expected, found, "download the file again")
    }
}
