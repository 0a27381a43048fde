//! Reading safetensors, with a check of every value that is read.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use half::bf16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use trail_platform::read::read_up_to;

use crate::bins::{Bins, MAX_BINS, MAX_TOKENS};
use crate::error::Error;
use crate::tap_layers::TapLayers;

/// Largest file read, MiB: the head of a model of width 16,384 has 33.
const MAX_MIB: u64 = 1024;

/// Most characters of metadata `model`.
pub(crate) const MODEL_CHARS: usize = 128;

/// Characters of the file's text that an error quotes.
const QUOTE_CHARS: usize = 64;

/// A parsed file and its name for errors.
pub(crate) struct Reader<'a> {
    name: &'a str,
    tensors: SafeTensors<'a>,
    /// 1 to 3.
    version: u32,
    /// The keys that were not read yet.
    metadata: BTreeMap<String, String>,
}

/// The contents of the file at `path`, and its name for errors.
pub(crate) fn read_file(path: &Path) -> Result<(Vec<u8>, String), Error> {
    let name = path.display().to_string();
    match read_up_to(path, MAX_MIB) {
        Ok(bytes) => Ok((bytes, name)),
        Err(cause) => Err(Error::Io { file: name, cause }),
    }
}

impl<'a> Reader<'a> {
    /// Parses `bytes` and checks `format` and `version`, which is at most `newest`.
    pub(crate) fn new(
        bytes: &'a [u8],
        name: &'a str,
        format: &str,
        newest: u32,
    ) -> Result<Reader<'a>, Error> {
        let parse = || {
            let (_, header) = SafeTensors::read_metadata(bytes)?;
            let metadata = header.metadata().clone().unwrap_or_default();
            Ok((SafeTensors::deserialize(bytes)?, metadata))
        };
        let parsed: Result<_, safetensors::SafeTensorError> = parse();
        let (tensors, metadata) = parsed.map_err(|error| {
            content(name, "header", "a safetensors file", quote(&error.to_string()))
        })?;
        let metadata = metadata.into_iter().collect();
        let mut reader = Reader { name, tensors, version: 0, metadata };
        reader.take("format", &format!("{format:?}"), |text| (text == format).then_some(()))?;
        reader.version = reader.integer("version", 1..=newest)?;
        Ok(reader)
    }

    /// The bins: in version 1 equal ones, `bins` over `max_tokens`; in later ones those between the
    /// `edges`, which the other two keys only repeat.
    pub(crate) fn bins(&mut self) -> Result<Bins, Error> {
        let bins = match self.version {
            1 => {
                let count = self.integer("bins", 1..=MAX_BINS as u32)?;
                Bins::equal(count as usize, self.integer("max_tokens", count..=MAX_TOKENS)?)
            }
            _ => self.edges()?,
        };
        ["bins", "max_tokens", "edges"].iter().for_each(|&key| _ = self.metadata.remove(key));
        Ok(bins)
    }

    /// The bins between the numbers in metadata `edges`.
    fn edges(&mut self) -> Result<Bins, Error> {
        let numbers = |text: &str| -> Option<Vec<f64>> {
            text.split(',').take(MAX_BINS + 2).map(|number| number.parse().ok()).collect()
        };
        let edges = self.take("edges", "decimal numbers with commas between", numbers)?;
        Bins::from_edges(&edges).map_err(|found| {
            content(self.name, "metadata edges", &format!("edges of 1 to {MAX_BINS} bins"), found)
        })
    }

    /// The fingerprint in metadata `model`, if any.
    pub(crate) fn model(&mut self) -> Result<Option<String>, Error> {
        match self.metadata.contains_key("model") {
            true => self.fingerprint("model").map(Some),
            false => Ok(None),
        }
    }

    /// The fingerprint in metadata `key`.
    pub(crate) fn fingerprint(&mut self, key: &str) -> Result<String, Error> {
        let expected = format!("at most {MODEL_CHARS} characters");
        let is_short = |text: &str| text.chars().count() <= MODEL_CHARS;
        self.take(key, &expected, |text| is_short(text).then(|| text.to_owned()))
    }

    /// Index of metadata `key` among `names`; 0 without the key.
    pub(crate) fn one_of(&mut self, key: &str, names: &[&str]) -> Result<usize, Error> {
        let index = |text: &str| names.iter().position(|of| *of == text);
        Ok(self.optional(key, &names.join(" or "), index)?.unwrap_or(0))
    }

    /// The metadata that nothing has read.
    pub(crate) fn into_record(self) -> BTreeMap<String, String> {
        self.metadata
    }

    /// The integer in metadata `key`, if it is within `range`.
    pub(crate) fn integer(&mut self, key: &str, range: RangeInclusive<u32>) -> Result<u32, Error> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.take(key, &expected, |text| text.parse().ok().filter(|value| range.contains(value)))
    }

    /// Takes the tapped layers.
    pub(crate) fn layers(&mut self) -> Result<TapLayers, Error> {
        self.take("layer", "a layer, or up to 4 that ascend with + between", |text| {
            text.parse().ok()
        })
    }

    /// Takes metadata `key`, if present; an error if `parse` gives no value of it.
    pub(crate) fn optional<T>(
        &mut self,
        key: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.metadata.contains_key(key) {
            true => self.take(key, expected, parse).map(Some),
            false => Ok(None),
        }
    }

    /// Takes metadata `key`, if `parse` gives a value of it.
    fn take<T>(
        &mut self,
        key: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let text = self.metadata.remove(key);
        text.as_deref().and_then(parse).ok_or_else(|| {
            let found = text.as_deref().map_or("none".into(), quote);
            content(self.name, &format!("metadata {key}"), expected, found)
        })
    }

    /// True if there is a tensor `tensor`.
    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.tensors.tensor(tensor).is_ok()
    }

    /// An error about tensor `tensor`: `found` in place of what is `expected`.
    pub(crate) fn refuse(&self, tensor: &str, expected: &str, found: String) -> Error {
        content(self.name, tensor, expected, found)
    }

    /// The first dimension of tensor `tensor`, at least 1.
    pub(crate) fn first_dimension(&self, tensor: &str) -> Result<usize, Error> {
        let shape = self.view(tensor)?.shape().to_vec();
        match shape.first() {
            Some(&first) if first > 0 => Ok(first),
            _ => Err(content(self.name, tensor, "at least one row", format!("shape {shape:?}"))),
        }
    }

    /// The values of tensor `tensor`, if it is finite `f32` or bf16 of shape `shape`.
    pub(crate) fn tensor(&self, tensor: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let view = self.view(tensor)?;
        if ![Dtype::F32, Dtype::BF16].contains(&view.dtype()) || view.shape() != shape {
            let found = format!("{:?} {:?}", view.dtype(), view.shape());
            return Err(content(self.name, tensor, &format!("F32 or BF16 {shape:?}"), found));
        }
        let values: Vec<f32> = if view.dtype() == Dtype::BF16 {
            let (pairs, _) = view.data().as_chunks::<2>();
            pairs.iter().map(|&pair| bf16::from_le_bytes(pair).to_f32()).collect()
        } else {
            let (quads, _) = view.data().as_chunks::<4>();
            quads.iter().map(|&quad| f32::from_le_bytes(quad)).collect()
        };
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
