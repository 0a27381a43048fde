//! Activations in 8 bits: blocks of 32 values of a row with one scale, as ggml's `Q8_1`.

/// Values of a block.
pub const Q8_VALUES: usize = 32;

/// Magnitudes below this count as zero: the inverse of their scale would not be finite.
const TINY: f32 = 1e-35;

/// 32 consecutive activations of a row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Q8Block {
    /// Activation divided by `scale`, rounded to the nearest integer: -127..=127.
    pub q: [i8; Q8_VALUES],
    /// The largest magnitude divided by 127; NaN if an activation is not finite.
    pub scale: f32,
    /// Sum of `q` of each half.
    pub half_sums: [i16; 2],
    /// `scale` times the sum of `q`: the factor of the minimum of a block of weights.
    pub sum: f32,
}

impl Q8Block {
    /// Number of blocks of a row of `len` activations.
    pub fn per_row(len: usize) -> usize {
        len.div_ceil(Q8_VALUES)
    }

    /// Quantizes 32 activations.
    #[inline(always)]
    pub fn new(x: &[f32; Q8_VALUES]) -> Self {
        // The bits of magnitudes, as integers, have their order; infinity and NaN are the largest.
        let bits = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(bits);
        if !largest.is_finite() {
            return Q8Block { scale: f32::NAN, sum: f32::NAN, ..Q8Block::default() };
        }
        if largest < TINY {
            return Q8Block::default();
        }
        let (scale, inverse) = (largest / 127.0, 127.0 / largest);
        let mut q = [0; Q8_VALUES];
        for (q, x) in q.iter_mut().zip(x) {
            // The sum is rounded to an integer, which its lowest bits hold.
            *q = (x * inverse + 12_582_912.0).to_bits() as i8;
        }
        let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum::<i16>();
        let half_sums = [sum(&q[..16]), sum(&q[16..])];
        let sum = scale * f32::from(half_sums[0] + half_sums[1]);
        Q8Block { q, scale, half_sums, sum }
    }
}

/// Quantizes a row, whose length is a multiple of 32.
#[inline(always)]
pub(crate) fn quantize_row(x: &[f32], out: &mut [Q8Block]) {
    let (blocks, rest) = x.as_chunks();
    assert!(rest.is_empty() && blocks.len() == out.len());
    for (x, out) in blocks.iter().zip(out) {
        *out = Q8Block::new(x);
    }
}
