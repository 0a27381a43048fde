//! The header of a safetensors file: dtype, shape and location of each tensor.
//!
//! The file is an 8-byte little-endian length, a JSON header of that length, then the tensor data.
//! The header is untrusted: every byte range is checked against the file.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde::Deserialize;

use super::error::LoadError;

/// Size of the header's length field, bytes.
const LENGTH_BYTES: usize = 8;
/// Maximum length of a header, bytes; the limit of the `safetensors` library.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const DOWNLOAD_AGAIN: &str = "download the file again";

/// The tensors of one file.
pub(super) struct Header {
    /// Dtype, shape and byte range (relative to `data_start`) of each tensor.
    pub(super) tensors: HashMap<String, TensorInfo>,
    /// Offset of the tensor data in the file, bytes.
    pub(super) data_start: usize,
}

/// The header's JSON.
#[derive(Deserialize)]
struct HeaderJson {
    #[serde(rename = "__metadata__")]
    _metadata: Option<HashMap<String, String>>,
    #[serde(flatten)]
    tensors: HashMap<String, TensorInfo>,
}

impl Header {
    /// Reads the header at the start of `bytes`, the content of `file`.
    pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let json = header_json(file, bytes)?;
        let HeaderJson { tensors, .. } = serde_json::from_slice(json).map_err(|error| {
            let found = error.to_string();
            LoadError::new(file, "header", "a table of tensors", found, DOWNLOAD_AGAIN)
        })?;
        let data_start = LENGTH_BYTES + json.len();
        check_places(file, &tensors, bytes.len() - data_start)?;
        Ok(Header { tensors, data_start })
    }
}

/// The header's bytes, without the length before them.
fn header_json<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a [u8], LoadError> {
    let refuse = |expected: String, found: String| {
        LoadError::new(file, "header length", expected, found, DOWNLOAD_AGAIN)
    };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(refuse("a safetensors file".into(), format!("{} bytes", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(refuse(format!("at most {MAX_HEADER_BYTES}"), length.to_string()));
    }
    rest.get(..length as usize).ok_or_else(|| {
        refuse(format!("at most {} left in the file", rest.len()), length.to_string())
    })
}

/// Checks that the tensors tile the file's `data_len` bytes of data, without hole or overlap.
fn check_places(
    file: &Path,
    tensors: &HashMap<String, TensorInfo>,
    data_len: usize,
) -> Result<(), LoadError> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(name, info)| (info.data_offsets, *name));
    let mut next = 0usize;
    for (name, info) in in_order {
        let (begin, end) = info.data_offsets;
        let expected = byte_len(info).and_then(|bytes| next.checked_add(bytes));
        if begin != next || Some(end) != expected {
            let expected = match expected {
                Some(end) => format!("bytes {next}..{end} for {:?} {:?}", info.dtype, info.shape),
                None => "a size that fits in memory".to_string(),
            };
            let found = format!("bytes {begin}..{end} of shape {:?}", info.shape);
            return Err(LoadError::new(file, name.as_str(), expected, found, DOWNLOAD_AGAIN));
        }
        if end > data_len {
            let expected = format!("{end} bytes of tensors in the file");
            let found = format!("{data_len}: the file is cut short");
            return Err(LoadError::new(file, name.as_str(), expected, found, DOWNLOAD_AGAIN));
        }
        next = end;
    }
    if next == data_len {
        return Ok(());
    }
    let (expected, found) = (format!("{next} bytes of tensors"), data_len.to_string());
    Err(LoadError::new(file, "file size", expected, found, DOWNLOAD_AGAIN))
}

/// Size of a tensor, bytes; `None` if it overflows or is no whole number of bytes.
fn byte_len(info: &TensorInfo) -> Option<usize> {
    let elements = info.shape.iter().try_fold(1usize, |n, &side| n.checked_mul(side))?;
    let bits = elements.checked_mul(info.dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}
