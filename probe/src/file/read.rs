//! Reading safetensors, with a check of every value that is read.

use std::ops::RangeInclusive;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::bins::{Bins, MAX_BINS, MAX_TOKENS};
use crate::error::Error;

/// The only `version` of either format.
pub(crate) const VERSION: &str = "1";

/// Characters of the file's text that an error quotes.
const QUOTE_CHARS: usize = 64;

/// A parsed file and its name for errors.
pub(crate) struct Reader<'a> {
    name: &'a str,
    tensors: SafeTensors<'a>,
    metadata: std::collections::HashMap<String, String>,
}

/// The contents of the file at `path`, and its name for errors.
pub(crate) fn read_file(path: &Path) -> Result<(Vec<u8>, String), Error> {
    let name = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => Ok((bytes, name)),
        Err(cause) => Err(Error::Io { file: name, cause }),
    }
}

impl<'a> Reader<'a> {
    /// Parses `bytes` and checks `format` and `version`.
    pub(crate) fn new(bytes: &'a [u8], name: &'a str, format: &str) -> Result<Reader<'a>, Error> {
        let parse = || {
            let (_, header) = SafeTensors::read_metadata(bytes)?;
            let metadata = header.metadata().clone().unwrap_or_default();
            Ok((SafeTensors::deserialize(bytes)?, metadata))
        };
        let parsed: Result<_, safetensors::SafeTensorError> = parse();
        let (tensors, metadata) = parsed.map_err(|error| {
            content(name, "header", "a safetensors file", quote(&error.to_string()))
        })?;
        let reader = Reader { name, tensors, metadata };
        reader.text("format", format)?;
        reader.text("version", VERSION)?;
        Ok(reader)
    }

    /// The bins in metadata `bins` and `max_tokens`.
    pub(crate) fn bins(&self) -> Result<Bins, Error> {
        let count = self.integer("bins", 1..=MAX_BINS as u32)?;
        let max_tokens = self.integer("max_tokens", count..=MAX_TOKENS)?;
        Ok(Bins::equal(count as usize, max_tokens))
    }

    /// The integer in metadata `key`, if it is within `range`.
    pub(crate) fn integer(&self, key: &str, range: RangeInclusive<u32>) -> Result<u32, Error> {
        let found = self.metadata.get(key);
        let value = found.and_then(|text| text.parse().ok()).filter(|value| range.contains(value));
        value.ok_or_else(|| {
            let expected = format!("an integer from {} to {}", range.start(), range.end());
            self.metadata_error(key, &expected)
        })
    }

    /// The first dimension of tensor `tensor`, at least 1.
    pub(crate) fn first_dimension(&self, tensor: &str) -> Result<usize, Error> {
        let shape = self.view(tensor)?.shape().to_vec();
        match shape.first() {
            Some(&first) if first > 0 => Ok(first),
            _ => Err(content(self.name, tensor, "at least one row", format!("shape {shape:?}"))),
        }
    }

    /// The values of tensor `tensor`, if it is finite `f32` of shape `shape`.
    pub(crate) fn tensor(&self, tensor: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let view = self.view(tensor)?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let found = format!("{:?} {:?}", view.dtype(), view.shape());
            return Err(content(self.name, tensor, &format!("F32 {shape:?}"), found));
        }
        let (quads, _) = view.data().as_chunks::<4>();
        let values: Vec<f32> = quads.iter().map(|&quad| f32::from_le_bytes(quad)).collect();
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let found = format!("{} at element {at}", values[at]);
                Err(content(self.name, tensor, "finite values", found))
            }
        }
    }

    fn view(&self, tensor: &str) -> Result<TensorView<'a>, Error> {
        let view = self.tensors.tensor(tensor);
        view.map_err(|_| content(self.name, tensor, "a tensor of this name", "none".into()))
    }

    fn text(&self, key: &str, expected: &str) -> Result<(), Error> {
        match self.metadata.get(key) {
            Some(found) if found == expected => Ok(()),
            _ => Err(self.metadata_error(key, &format!("{expected:?}"))),
        }
    }

    fn metadata_error(&self, key: &str, expected: &str) -> Error {
        let found = self.metadata.get(key).map_or("none".into(), |text| quote(text));
        content(self.name, &format!("metadata {key}"), expected, found)
    }
}

fn content(name: &str, what: &str, expected: &str, found: String) -> Error {
    Error::Content { file: name.into(), what: what.into(), expected: expected.into(), found }
}

/// The beginning of `text` in quotes, escaped to one line.
fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}
