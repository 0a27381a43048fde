//! Quantized checkpoints in safetensors files: GPTQ, AWQ, compressed-tensors, FP8.
//!
//! A matrix of such a checkpoint is several tensors ([`FourBits`], [`fp8`]). It is copied at load
//! into a type that the kernels have: 4 bits into ggml's blocks, without a change of any weight,
//! but f16, rounded once, where groups are not side by side; FP8 into bf16, rounded once.

mod blocks;
mod config;
mod four_bits;
mod fp8;

use std::sync::{Arc, Mutex, PoisonError};

use trail_platform::Memory;

pub use config::Quantization;
use four_bits::FourBits;

use super::archive::{Archive, RawTensor};
use super::error::LoadError;
use super::{Dtype, Tensor};

/// Takes the `[rows, cols]` matrix `name` from `archive`; `None` if it is not quantized.
pub(super) fn matrix(
    archive: &mut Archive,
    quantization: Quantization,
    name: &str,
    (rows, cols): (usize, usize),
) -> Result<Option<Tensor>, LoadError> {
    let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
    let weight = format!("{module}.{}", quantization.weight());
    let is_fp8 = matches!(quantization, Quantization::Fp8 { .. });
    if !archive.contains(&weight) || (is_fp8 && !archive.stores(&weight, fp8::STORED)) {
        return Ok(None);
    }
    let tensor = match quantization {
        Quantization::Fp8 { scale, block } => {
            fp8::widen(archive, module, (rows, cols), (scale, block))?
        }
        _ => blocks::repack(&FourBits::take(archive, module, (rows, cols), quantization)?),
    };
    archive.forget(module, quantization.unread());
    Ok(Some(tensor))
}

/// Refuses copies of all quantized matrices that do not fit in the available memory.
pub(super) fn check_memory(
    archive: &Archive,
    quantization: Quantization,
    memory: Option<Memory>,
) -> Result<(), LoadError> {
    // At most these in place of 4 bits, bf16 in place of 8. Scales beyond f16 take more, and are
    // rare.
    let is_mixed = matches!(quantization, Quantization::Gptq { act_order: true, .. });
    let dtype = if is_mixed { Dtype::F16 } else { Dtype::Q5_0 };
    let copied = archive.bytes_of("I32") * 2 * dtype.block_bytes() as u64
        / dtype.block_values() as u64
        + archive.bytes_of(fp8::STORED) * 2;
    check_copies(archive, copied, memory)
}

/// Refuses copies of `bytes` that do not fit in the available memory.
pub(super) fn check_copies(
    archive: &Archive,
    bytes: u64,
    memory: Option<Memory>,
) -> Result<(), LoadError> {
    match memory {
        Some(memory) if bytes > memory.available_bytes => Err(LoadError::new(
            archive.file(),
            "quantized weights",
            format!("{} MiB of memory for their copy", bytes >> 20),
            format!("{} MiB available", memory.available_bytes >> 20),
            "choose a smaller model, or one in GGUF, which is not copied",
        )),
        _ => Ok(()),
    }
}

/// Rows that a thread copies at once: of a cache line of AWQ's words.
const TILE: usize = 128;

/// Makes a `[rows, cols]` matrix of `dtype` on all cores: `copy` stores the rows from its first
/// argument on, up to [`TILE`].
pub(super) fn copy_tiles(
    dtype: Dtype,
    (rows, cols): (usize, usize),
    copy: impl Fn(usize, &mut [u8]) + Sync,
) -> Tensor {
    let row_bytes = dtype.bytes_of(cols);
    let mut bytes = vec![0; rows * row_bytes];
    let tiles = Mutex::new(bytes.chunks_mut(TILE * row_bytes).enumerate());
    let next = || tiles.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..trail_platform::available_threads() {
            scope.spawn(|| {
                while let Some((tile, out)) = next() {
                    copy(tile * TILE, out);
                }
            });
        }
    });
    let tensor = Tensor::new(dtype, rows, cols, Arc::new(bytes), 0);
    tensor.expect("rows of whole blocks")
}

/// Returns an error about `tensor`, which is not as `expected`.
fn refuse(tensor: &RawTensor, expected: String) -> LoadError {
    let found = format!("{} {:?}", tensor.dtype, tensor.shape);
    let remedy = "check that config.json belongs to this file";
    LoadError::new(&tensor.file, &tensor.name, expected, found, remedy)
}

/// Takes the tensor `name`, which must have one of the stored types `dtypes`, and `shape`.
pub(super) fn take(
    archive: &mut Archive,
    name: &str,
    dtypes: &[&str],
    shape: &[usize],
) -> Result<RawTensor, LoadError> {
    let expected = || format!("{} {shape:?}", dtypes.join(" or "));
    let tensor = archive.take_raw(name).ok_or_else(|| {
        let remedy = "download the file again, or choose another checkpoint of the model";
        LoadError::new(archive.file(), name, expected(), "no such tensor", remedy)
    })?;
    match dtypes.contains(&tensor.dtype.as_str()) && tensor.shape == shape {
        true => Ok(tensor),
        false => Err(refuse(&tensor, expected())),
    }
}
