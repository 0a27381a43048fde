//! Storage types of weights, and their plain conversion to f32.

use std::fmt;

use half::{bf16, f16};

/// Storage type of a weight tensor. The quantized types are ggml's: a row is a sequence of blocks,
/// whose values are small integers with common scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// Brain float: the upper half of an f32.
    Bf16,
    /// 32 values of 8 bits, one scale.
    Q8_0,
    /// 32 values of 4 bits, one scale, offset 8.
    Q4_0,
    /// 32 values of 4 bits, scale and minimum.
    Q4_1,
    /// 32 values of 5 bits, one scale, offset 16.
    Q5_0,
    /// 32 values of 5 bits, scale and minimum.
    Q5_1,
    /// 256 values of 4 bits, in groups of 32 with a 6-bit scale and minimum.
    Q4K,
    /// 256 values of 5 bits, in groups of 32 with a 6-bit scale and minimum.
    Q5K,
    /// 256 values of 6 bits, in groups of 16 with an 8-bit scale.
    Q6K,
    /// 32 values of 4 bits (E2M1), one power of two as scale (E8M0): OCP Microscaling.
    MxFp4,
}

/// Values of a block of the types with one scale per 32 values.
const SMALL_BLOCK: usize = 32;
/// Values of a block of the K types.
const SUPER_BLOCK: usize = 256;

impl Dtype {
    /// All types.
    pub const ALL: [Dtype; 12] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
        Dtype::MxFp4,
    ];

    /// Values of a block: a row's length is a multiple of it.
    pub const fn block_values(self) -> usize {
        match self {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => 1,
            Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::MxFp4 => {
                SMALL_BLOCK
            }
            Dtype::Q4K | Dtype::Q5K | Dtype::Q6K => SUPER_BLOCK,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::Q8_0 => 34,
            Dtype::Q4_0 => 18,
            Dtype::Q4_1 => 20,
            Dtype::Q5_0 => 22,
            Dtype::Q5_1 => 24,
            Dtype::Q4K => 144,
            Dtype::Q5K => 176,
            Dtype::Q6K => 210,
            Dtype::MxFp4 => 17,
        }
    }

    /// Bytes of `values` consecutive values, a multiple of [`block_values`](Self::block_values).
    pub const fn bytes_of(self, values: usize) -> usize {
        values / self.block_values() * self.block_bytes()
    }

    /// True if the values are integers with scales.
    pub const fn is_quantized(self) -> bool {
        self.block_values() > 1
    }

    /// Converts the values stored in `bytes` to f32, as ggml's reference does: exact for the float
    /// types and those without a minimum, else rounded once. `out` has
    /// `bytes.len() / block_bytes * block_values` values.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        debug_assert_eq!(self.bytes_of(out.len()), bytes.len());
        match self {
            Dtype::F32 => floats(bytes, out, f32::from_le_bytes),
            Dtype::F16 => floats(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::Bf16 => floats(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            quantized => {
                let blocks = bytes.chunks_exact(quantized.block_bytes());
                for (block, out) in blocks.zip(out.chunks_exact_mut(quantized.block_values())) {
                    quantized.widen_block(block, out);
                }
            }
        }
    }

    /// Rounds `values` to the nearest of a float type or of Q8_0, as they are stored. A block with
    /// a value that is not finite becomes NaN. Panics for other types.
    pub fn narrow(self, values: &[f32], out: &mut [u8]) {
        assert_eq!(self.bytes_of(values.len()), out.len());
        match self {
            Dtype::F32 => store(values, out, f32::to_le_bytes),
            Dtype::F16 => store(values, out, |x| f16::from_f32(x).to_le_bytes()),
            Dtype::Bf16 => store(values, out, |x| bf16::from_f32(x).to_le_bytes()),
            Dtype::Q8_0 => {
                let blocks = out.chunks_exact_mut(self.block_bytes());
                values.as_chunks().0.iter().zip(blocks).for_each(|(x, out)| put_q8_0(x, out));
            }
            other => panic!("{other} is not stored from f32"),
        }
    }

    /// Converts one block of a quantized type.
    fn widen_block(self, block: &[u8], out: &mut [f32]) {
        match self {
            Dtype::Q8_0 => {
                let d = half_at(block, 0);
                out.iter_mut().zip(&block[2..]).for_each(|(out, &q)| *out = d * f32::from(q as i8));
            }
            Dtype::Q4_0 => nibbles(out, half_at(block, 0), -8.0, None, &block[2..], &[0; 4]),
            Dtype::Q4_1 => {
                let min = Some(half_at(block, 2));
                nibbles(out, half_at(block, 0), 0.0, min, &block[4..], &[0; 4]);
            }
            Dtype::Q5_0 => {
                nibbles(out, half_at(block, 0), -16.0, None, &block[6..], &block[2..6]);
            }
            Dtype::Q5_1 => {
                let min = Some(half_at(block, 2));
                nibbles(out, half_at(block, 0), 0.0, min, &block[8..], &block[4..8]);
            }
            Dtype::Q4K => groups(out, block, &block[16..], &[0; 32]),
            Dtype::Q5K => groups(out, block, &block[48..], &block[16..48]),
            Dtype::Q6K => six_bits(out, block),
            Dtype::MxFp4 => e2m1(out, block),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("a block of one value"),
        }
    }
}

/// The name in ggml's files, `BF16` and `Q4_K` for instance.
impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::Q8_0 => "Q8_0",
            Dtype::Q4_0 => "Q4_0",
            Dtype::Q4_1 => "Q4_1",
            Dtype::Q5_0 => "Q5_0",
            Dtype::Q5_1 => "Q5_1",
            Dtype::Q4K => "Q4_K",
            Dtype::Q5K => "Q5_K",
            Dtype::Q6K => "Q6_K",
            Dtype::MxFp4 => "MXFP4",
        })
    }
}

/// Stores `values` as `N` bytes each.
fn store<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (out, &value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = bytes(value);
    }
}

/// Stores 32 values with the scale that makes the largest magnitude 127.
fn put_q8_0(values: &[f32; SMALL_BLOCK], out: &mut [u8]) {
    let is_finite = values.iter().all(|x| x.is_finite());
    let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let largest = if is_finite { largest } else { f32::NAN };
    let scale = f16::from_f32(largest / 127.0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    // Infinite if the scale is zero, as are all values then.
    let inverse = 1.0 / scale.to_f32();
    for (out, x) in out[2..].iter_mut().zip(values) {
        *out = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
}

/// Decodes little-endian values of `N` bytes.
fn floats<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, &bytes)| *out = value(bytes));
}

/// The f16 at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 32 values of 4 or 5 bits: value j is the low nibble of byte j, value j + 16 the high one; bit j
/// of `fifth` is the highest bit of value j.
fn nibbles(out: &mut [f32], d: f32, offset: f32, min: Option<f32>, low: &[u8], fifth: &[u8]) {
    for (j, out) in out.iter_mut().enumerate() {
        let nibble = low[j % 16] >> (4 * (j / 16)) & 15;
        let q = nibble | (fifth[j / 8] >> (j % 8) & 1) << 4;
        *out = d * (f32::from(q) + offset) + min.unwrap_or(0.0);
    }
}

/// 256 values of 4 or 5 bits in groups of 32. Groups 2i and 2i + 1 are the low and the high nibbles
/// of 32 bytes; bit g of `fifth[j]` is the highest bit of value j of group g.
fn groups(out: &mut [f32], block: &[u8], low: &[u8], fifth: &[u8]) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], g);
        let (scale, min) = (d * f32::from(scale), d_min * f32::from(min));
        for (j, out) in out.iter_mut().enumerate() {
            let nibble = low[g / 2 * 32 + j] >> (4 * (g % 2)) & 15;
            let q = nibble | (fifth[j] >> g & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

/// The 6-bit scale and minimum of group `g` of eight, packed in 12 bytes.
fn scale_and_min(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        return (packed[g] & 63, packed[g + 4] & 63);
    }
    let scale = packed[g + 4] & 15 | packed[g - 4] >> 6 << 4;
    let min = packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    (scale, min)
}

/// Twice the values of the codes of E2M1, whose highest bit is the sign.
pub(super) const E2M1_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an E8M0 byte represents: `2^(byte - 128)`.
pub(super) fn e8m0_half(byte: u8) -> f32 {
    match byte {
        0 | 1 => f32::from_bits(0x0020_0000 << byte), // Subnormal.
        _ => f32::from_bits((u32::from(byte) - 1) << 23),
    }
}

/// 32 values of E2M1: value j is the low nibble of byte j, value j + 16 the high one.
fn e2m1(out: &mut [f32], block: &[u8]) {
    let scale = e8m0_half(block[0]);
    for (j, out) in out.iter_mut().enumerate() {
        let code = block[1 + j % 16] >> (4 * (j / 16)) & 15;
        *out = scale * f32::from(E2M1_TWICE[usize::from(code)]);
    }
}

/// 256 values of 6 bits: two halves of 128, whose four runs of 32 share their bytes of low and of
/// high bits; a scale per 16 values.
fn six_bits(out: &mut [f32], block: &[u8]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = (&rest[..16], half_at(rest, 16));
    for (i, out) in out.iter_mut().enumerate() {
        let (half, run, j) = (i / 128, i % 128 / 32, i % 32);
        let nibble = low[half * 64 + run % 2 * 32 + j] >> (run / 2 * 4) & 15;
        let q = nibble | (high[half * 32 + j] >> (2 * run) & 3) << 4;
        *out = d * f32::from(scales[i / 16] as i8) * (f32::from(q) - 32.0);
    }
}
