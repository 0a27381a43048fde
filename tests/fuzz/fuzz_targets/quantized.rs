//! A kind of quantization and any bytes as a safetensors file: refused in one line, or a matrix
//! whose every weight can be read.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trail_runtime::model::{Archive, Quantization};

/// Small, and yet of several groups, words and blocks.
const SHAPE: (usize, usize) = (8, 64);

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, file)) = bytes.split_first() else { return };
    let (is_whole, flag) = (kind & 8 != 0, kind & 16 != 0);
    let group = if is_whole { None } else { Some(32) };
    let quantization = match kind % 4 {
        0 => Quantization::Gptq { group, zeros_less_one: flag, act_order: flag },
        1 => Quantization::Awq { group },
        2 => Quantization::Packed { group, symmetric: flag },
        _ => Quantization::Fp8 { scale: "scale", block: group.map(|group| [5, group]) },
    };
    let archive = Archive::from_storage(Path::new("m.safetensors"), Arc::new(file.to_vec()));
    let archive = archive.and_then(|archive| archive.quantized(Some(quantization)));
    match archive.and_then(|mut archive| archive.matrix("m.weight", SHAPE.0, SHAPE.1)) {
        Ok(matrix) => assert_eq!(matrix.to_f32().len(), SHAPE.0 * SHAPE.1),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});
