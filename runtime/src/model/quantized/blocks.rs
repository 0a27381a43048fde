//! 4-bit codes copied into ggml's blocks of 32, which hold every weight exactly.
//!
//! A block has one scale in f16, and stores no zero point: Q4_0 has 8, which is that of symmetric
//! codes; Q5_0 has 16, and one bit more, so that it holds `code - zero + 16`, from 1 to 31, for any
//! zero point (Q4_1's minimum is f16, where `scale * zero` would be rounded). Columns
//! of several groups in one block (GPTQ's act-order) or scales beyond f16 leave no block: those
//! matrices are widened.

use half::f16;

use super::super::{Dtype, Tensor};
use super::copy_tiles;
use super::four_bits::{BLOCK, FourBits, SYMMETRIC};

/// Copies `matrix` on all cores.
pub(super) fn repack(matrix: &FourBits) -> Tensor {
    let dtype = dtype(matrix);
    copy_tiles(dtype, (matrix.rows, matrix.cols), |first, out| {
        copy_tile(matrix, dtype, first, out);
    })
}

/// The smallest type that holds every weight of `matrix`, or f16 where the groups of columns are
/// mixed, as GPTQ's own kernels round.
fn dtype(matrix: &FourBits) -> Dtype {
    let is_f16 = |scale: &f32| f16::from_f32(*scale).to_f32() == *scale;
    let is_one_group = |block: &[u32]| block.iter().all(|group| *group == block[0]);
    if !matrix.scales.iter().all(is_f16) {
        Dtype::F32
    } else if !matrix.groups.chunks(BLOCK).all(is_one_group) {
        Dtype::F16
    } else if matrix.zeros.iter().all(|zero| *zero == SYMMETRIC) {
        Dtype::Q4_0
    } else {
        Dtype::Q5_0
    }
}

/// Copies the rows from `first` on into `out`, block by block of all rows: words of GPTQ and AWQ
/// that are side by side belong to different rows.
fn copy_tile(matrix: &FourBits, dtype: Dtype, first: usize, out: &mut [u8]) {
    let (row_bytes, block_bytes) = (dtype.bytes_of(matrix.cols), dtype.bytes_of(BLOCK));
    for block in 0..matrix.cols / BLOCK {
        for (index, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let out = &mut out[block * block_bytes..][..block_bytes];
            copy_block(matrix, dtype, (first + index, block), out);
        }
    }
}

fn copy_block(matrix: &FourBits, dtype: Dtype, (row, block): (usize, usize), out: &mut [u8]) {
    let codes = matrix.codes(row, block);
    let groups = &matrix.groups[BLOCK * block..];
    let at = |group: u32| group as usize * matrix.rows + row;
    let (scale, zero) = (matrix.scales[at(groups[0])], matrix.zeros[at(groups[0])]);
    let scale = f16::from_f32(scale).to_le_bytes();
    match dtype {
        Dtype::Q4_0 => {
            out[..2].copy_from_slice(&scale);
            put_nibbles(&codes, &mut out[2..]);
        }
        Dtype::Q5_0 => {
            let codes = codes.map(|code| code + 16 - zero);
            let high = (0..BLOCK).fold(0, |bits, at| bits | u32::from(codes[at] >> 4) << at);
            out[..2].copy_from_slice(&scale);
            out[2..6].copy_from_slice(&high.to_le_bytes());
            put_nibbles(&codes, &mut out[6..]);
        }
        _ => {
            let weight = |index: usize| {
                let at = at(groups[index]);
                let steps = f32::from(codes[index]) - f32::from(matrix.zeros[at]);
                matrix.scales[at] * steps
            };
            let weights: [f32; BLOCK] = std::array::from_fn(weight);
            dtype.narrow(&weights, out);
        }
    }
}

/// Stores the low 4 bits of each code: the first 16 below the others.
fn put_nibbles(codes: &[u8; BLOCK], out: &mut [u8]) {
    let (low, high) = codes.split_at(BLOCK / 2);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}
