//! Random weights of every stored type.

use half::{bf16, f16};
use trail_platform::Rng;

use crate::Dtype;

/// Standard deviation of the projections' weights.
pub const DEVIATION: f32 = 0.02;

/// Fills `bytes` with values of `dtype` of standard deviation [`DEVIATION`].
pub fn fill_random(bytes: &mut [u8], dtype: Dtype, rng: &mut Rng) {
    if dtype.is_quantized() {
        let blocks = bytes.chunks_exact_mut(dtype.block_bytes());
        return blocks.for_each(|block| fill_block(block, dtype, DEVIATION, rng));
    }
    let mut draw = || DEVIATION * rng.fast_normal();
    match dtype {
        Dtype::F32 => bytes.as_chunks_mut().0.iter_mut().for_each(|b| *b = draw().to_le_bytes()),
        Dtype::F16 => {
            let halves = bytes.as_chunks_mut().0.iter_mut();
            halves.for_each(|b| *b = f16::from_f32(draw()).to_le_bytes());
        }
        _ => {
            let halves = bytes.as_chunks_mut().0.iter_mut();
            halves.for_each(|b| *b = bf16::from_f32(draw()).to_le_bytes());
        }
    }
}

/// Fills `block` with uniform integers, and with scales and minima by which its values have mean 0
/// and standard deviation `deviation`.
fn fill_block(block: &mut [u8], dtype: Dtype, deviation: f32, rng: &mut Rng) {
    for word in block.chunks_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]);
    }
    // Integers 0..n have deviation sqrt((n^2 - 1) / 12); an offset of n / 2 leaves a mean of -1/2.
    let linear = |n: f32| deviation / ((n * n - 1.0) / 12.0).sqrt();
    let centred = |n: f32| deviation / ((n * n + 2.0) / 12.0).sqrt();
    let sign = if rng.next_u64() & 1 == 0 { 1.0 } else { -1.0 };
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("a block of one value"),
        Dtype::Q8_0 => put_half(block, 0, sign * centred(256.0)),
        Dtype::Q4_0 => put_half(block, 0, sign * centred(16.0)),
        Dtype::Q5_0 => put_half(block, 0, sign * centred(32.0)),
        Dtype::Q4_1 => put_scale_and_min(block, linear(16.0), -7.5),
        Dtype::Q5_1 => put_scale_and_min(block, linear(32.0), -15.5),
        Dtype::Q4K | Dtype::Q5K => {
            let (n, middle) = if dtype == Dtype::Q4K { (16.0, 7.5) } else { (32.0, 15.5) };
            let scales = std::array::from_fn(|_| 32 + rng.below(32) as u8);
            put_scale_and_min(block, linear(n) / root_mean_square(&scales), middle);
            pack_pairs(&mut block[4..16], scales);
        }
        // The codes' values have a mean square of (0 + 1 + 4 + 9 + 16 + 36 + 64 + 144) / 8 / 4 =
        // 8.6. Of the powers of two around the scale, each is as likely as brings the deviation.
        Dtype::MxFp4 => {
            let scale = deviation / (274.0_f32 / 32.0).sqrt();
            let below = scale.log2().floor();
            let low = below.exp2();
            let share = (scale * scale / (low * low) - 1.0) / 3.0;
            let is_high = (rng.next_u64() >> 40) as f32 / (1u64 << 24) as f32 <= share;
            block[0] = (below as i32 + 127 + i32::from(is_high)) as u8;
        }
        Dtype::Q6K => {
            let scales: [u8; 16] = std::array::from_fn(|_| 64 + rng.below(64) as u8);
            block[192..208].copy_from_slice(&scales);
            put_half(block, 208, sign * centred(64.0) / root_mean_square(&scales));
        }
    }
}

fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Stores the two halves of a block with minima; the minimum is `factor` scales.
fn put_scale_and_min(block: &mut [u8], scale: f32, factor: f32) {
    put_half(block, 0, scale);
    put_half(block, 2, scale * factor);
}

fn root_mean_square(scales: &[u8]) -> f32 {
    let squares: f32 = scales.iter().map(|&scale| f32::from(scale).powi(2)).sum();
    (squares / scales.len() as f32).sqrt()
}

/// Packs eight 6-bit integers as the scales and as the minima of Q4_K and Q5_K.
fn pack_pairs(packed: &mut [u8], scales: [u8; 8]) {
    for g in 0..4 {
        let (low, high) = (scales[g], scales[g + 4]);
        packed[g] = low | high >> 4 << 6;
        packed[g + 4] = packed[g];
        packed[g + 8] = high & 15 | high << 4;
    }
}
