//! One GGUF file: its metadata, and the place of each tensor.

use std::path::Path;

use super::metadata::Metadata;
use super::reader::Reader;
use crate::model::{Dtype, LoadError, Storage};

/// First bytes of a file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Versions with 64-bit lengths.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Alignment of the tensors where the metadata names none, bytes.
const DEFAULT_ALIGNMENT: usize = 32;
/// Largest alignment accepted, bytes.
const MAX_ALIGNMENT: usize = 1 << 16;
/// Most dimensions of a tensor, as in ggml.
const MAX_DIMENSIONS: usize = 4;
/// Fewest bytes of a pair of the metadata: length of the key, type, value.
const PAIR_BYTES: usize = 8 + 4 + 1;
/// Fewest bytes of a tensor info: length of the name, number of dimensions, type, offset.
const INFO_BYTES: usize = 8 + 4 + 4 + 8;

/// A mapped GGUF file.
pub struct GgufFile {
    /// The key-value pairs.
    pub metadata: Metadata,
    /// The tensors, in the order of the file.
    pub tensors: Vec<TensorInfo>,
    /// The bytes of the file.
    pub storage: Storage,
}

/// Dtype, shape and place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Shape, slowest dimension first: `[rows, cols]` of a matrix.
    pub shape: Vec<usize>,
    /// Type of the values.
    pub dtype: Dtype,
    /// Offset in the file, bytes.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl GgufFile {
    /// Reads the file whose content is `storage`.
    pub fn read(file: &Path, storage: Storage) -> Result<Self, LoadError> {
        let bytes = (*storage).as_ref();
        let mut reader = Reader::new(file, bytes);
        read_version(&mut reader)?;
        let tensor_count = reader.count(INFO_BYTES)?;
        let pair_count = reader.count(PAIR_BYTES)?;
        let metadata = Metadata::read(file, &mut reader, pair_count)?;
        let key = "general.alignment";
        let alignment = metadata.optional_size(key, MAX_ALIGNMENT)?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() {
            return Err(metadata.refuse(key, "a power of two", "download the file again"));
        }
        reader.enter("tensor infos");
        let infos = (0..tensor_count).map(|_| read_info(&mut reader));
        let mut tensors = infos.collect::<Result<Vec<_>, _>>()?;
        let data_start = reader.position().next_multiple_of(alignment);
        place(file, &mut tensors, data_start, alignment, bytes.len())?;
        Ok(GgufFile { metadata, tensors, storage })
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<(), LoadError> {
    let magic = reader.array::<4>()?;
    if &magic != MAGIC {
        return Err(reader.refuse("a GGUF file".into(), format!("it begins with {magic:?}")));
    }
    let version = reader.u32()?;
    if VERSIONS.contains(&version) {
        return Ok(());
    }
    let found = match VERSIONS.contains(&version.swap_bytes()) {
        true => "a big-endian file".to_string(),
        false => format!("version {version}"),
    };
    Err(reader.refuse("version 2 or 3, little-endian".into(), found))
}

/// Reads one info. Its `offset` is relative to the tensor data.
fn read_info(reader: &mut Reader<'_>) -> Result<TensorInfo, LoadError> {
    let name = reader.text()?.to_string();
    let dimensions = reader.u32()? as usize;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        let expected = format!("1 to {MAX_DIMENSIONS} dimensions of {name}");
        return Err(reader.refuse(expected, dimensions.to_string()));
    }
    let mut shape = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        shape.push(usize::try_from(reader.u64()?).unwrap_or(usize::MAX));
    }
    // The file has the fastest dimension first.
    shape.reverse();
    let kind = reader.u32()?;
    let Some(dtype) = dtype_of(kind) else {
        let expected =
            format!("{name} in {}", Dtype::ALL.map(|dtype| dtype.to_string()).join(", "));
        return Err(reader.refuse(expected, kind_name(kind)));
    };
    let offset = usize::try_from(reader.u64()?).unwrap_or(usize::MAX);
    let Some(len) = byte_len(dtype, &shape) else {
        let expected = format!("{name} with rows of whole {dtype} blocks");
        return Err(reader.refuse(expected, format!("shape {shape:?}")));
    };
    Ok(TensorInfo { name, shape, dtype, offset, len })
}

/// Bytes of a tensor; `None` if they overflow or a row is no whole number of blocks.
fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let values = shape.iter().try_fold(1usize, |n, &side| n.checked_mul(side))?;
    let is_whole = values > 0 && shape.last()?.is_multiple_of(dtype.block_values());
    let blocks = is_whole.then(|| values / dtype.block_values())?;
    blocks.checked_mul(dtype.block_bytes())
}

/// Makes offsets relative to the file, and checks that the tensors are in it, aligned and apart.
fn place(
    file: &Path,
    tensors: &mut [TensorInfo],
    data_start: usize,
    alignment: usize,
    file_len: usize,
) -> Result<(), LoadError> {
    let refuse = |name: &str, expected: String, found: String| {
        Err(LoadError::new(file, name, expected, found, "download the file again"))
    };
    for tensor in tensors.iter_mut() {
        let offset = tensor.offset;
        if !offset.is_multiple_of(alignment) {
            let expected = format!("an offset that is a multiple of {alignment}");
            return refuse(&tensor.name, expected, offset.to_string());
        }
        let begin = data_start.checked_add(offset);
        let end = begin.and_then(|begin| begin.checked_add(tensor.len));
        match (begin, end) {
            (Some(begin), Some(end)) if end <= file_len => tensor.offset = begin,
            _ => {
                let expected =
                    format!("{} bytes at offset {offset} of the tensor data", tensor.len);
                let found = format!("a file of {file_len} bytes: it is cut short or damaged");
                return refuse(&tensor.name, expected, found);
            }
        }
    }
    let mut in_order: Vec<&TensorInfo> = tensors.iter().collect();
    in_order.sort_by_key(|tensor| (tensor.offset, &tensor.name));
    for pair in in_order.windows(2) {
        if pair[0].offset + pair[0].len > pair[1].offset {
            let expected = format!("bytes after those of {}", pair[0].name);
            return refuse(&pair[1].name, expected, "an overlap".into());
        }
    }
    in_order.sort_by_key(|tensor| &tensor.name);
    match in_order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        None => Ok(()),
        Some(pair) => refuse(&pair[0].name, "each name once".into(), "two tensors".into()),
    }
}

/// The type with number `kind` in ggml's list.
fn dtype_of(kind: u32) -> Option<Dtype> {
    Some(match kind {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        12 => Dtype::Q4K,
        13 => Dtype::Q5K,
        14 => Dtype::Q6K,
        30 => Dtype::Bf16,
        39 => Dtype::MxFp4,
        _ => return None,
    })
}

/// Name of a type that is not supported.
fn kind_name(kind: u32) -> String {
    let name = match kind {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        _ => return format!("type {kind}"),
    };
    format!("{name} (type {kind})")
}
