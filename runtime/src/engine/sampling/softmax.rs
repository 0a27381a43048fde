//! Passes over a whole vocabulary: maximum, exponentials, block sums, and the draw from them.
//!
//! A *weight* is an unnormalised probability, relative to the most likely token, whose weight is exactly 1. Weights are f32,
//! summed per block of [`BLOCK`] tokens in f32 lanes, and over blocks in f64. Lanes, blocks and their order are fixed and no
//! multiply-add is fused, so the bits of the result are the same on every CPU, with or without AVX2.

use std::f32::consts::LOG2_E;

/// Tokens per partial sum: the draw walks the block sums, then one block.
pub(super) const BLOCK: usize = 256;
/// Independent accumulators, enough to fill two AVX2 registers.
const LANES: usize = 16;

/// Compiles a function twice, plain and for AVX2, and picks one at each call.
macro_rules! widest {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block) => {
        $(#[$doc])*
        pub(super) fn $name($($arg: $type),*) -> $result {
            #[inline(always)]
            fn portable($($arg: $type),*) -> $result $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) -> $result {
                    portable($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: `avx2` asks for nothing but the CPU feature, which was detected just now.
                    return unsafe { avx2($($arg),*) };
                }
            }
            portable($($arg),*)
        }
    };
}
pub(super) use widest;

/// What one look at the logits tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scan {
    /// The largest logit that is not NaN; minus infinity if there is none.
    pub(super) max: f32,
    /// Whether there is a NaN or plus infinity. (Minus infinity is a masked token, which is legitimate.)
    pub(super) broken: bool,
}

widest! {
    /// Looks at every logit once.
    fn scan(logits: &[f32]) -> Scan {
        let mut max = [f32::NEG_INFINITY; LANES];
        let mut broken = [0u32; LANES];
        let (chunks, tail) = logits.as_chunks::<LANES>();
        let mut padded = [f32::NEG_INFINITY; LANES];
        padded[..tail.len()].copy_from_slice(tail);
        for chunk in chunks.iter().chain([&padded]) {
            for lane in 0..LANES {
                let logit = chunk[lane];
                max[lane] = if logit > max[lane] { logit } else { max[lane] };
                broken[lane] |= u32::from(logit.is_nan() | (logit == f32::INFINITY));
            }
        }
        Scan { max: max.into_iter().fold(f32::NEG_INFINITY, f32::max), broken: broken.iter().any(|&lane| lane != 0) }
    }
}

widest! {
    /// The sum of exp(logit - max).
    fn sum_exp(logits: &[f32], max: f32) -> f64 {
        let block_sum = |block: &[f32]| sum(block, |logit| exp2((logit - max) * LOG2_E));
        logits.chunks(BLOCK).map(|block| f64::from(block_sum(block))).sum()
    }
}

/// Which weights are computed: exp((logit - max) / temperature), or 0 where that is below `floor`.
#[derive(Clone, Copy)]
pub(super) struct Tempering {
    /// The largest logit.
    pub(super) max: f32,
    /// What logits are divided by; above zero.
    pub(super) temperature: f32,
    /// The smallest weight that counts: min-p, for the largest weight is 1.
    pub(super) floor: f32,
}

widest! {
    /// Fills `weights` and their block sums; returns the total.
    fn weigh(logits: &[f32], tempering: Tempering, weights: &mut [f32], block_sums: &mut [f64]) -> f64 {
        let Tempering { max, temperature, floor } = tempering;
        let scale = LOG2_E / temperature;
        let mut total = 0.0;
        let blocks = logits.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)).zip(block_sums);
        for ((logits, weights), block_sum) in blocks {
            for (weight, &logit) in weights.iter_mut().zip(logits) {
                let tempered = exp2((logit - max) * scale);
                *weight = if tempered >= floor { tempered } else { 0.0 };
            }
            *block_sum = f64::from(sum(weights, |weight| weight));
            total += *block_sum;
        }
        total
    }
}

widest! {
    /// Zeroes the weights of all tokens that rank after `last`, a token with its logit; returns the new total.
    ///
    /// Tokens rank by logit, best first, and by id among equal logits.
    fn keep_through(last: (u32, f32), logits: &[f32], weights: &mut [f32], block_sums: &mut [f64]) -> f64 {
        let (last_id, last_logit) = last;
        let mut total = 0.0;
        let blocks = logits.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)).zip(block_sums);
        for (index, ((logits, weights), block_sum)) in blocks.enumerate() {
            let first_id = (index * BLOCK) as u32;
            for (offset, (weight, &logit)) in weights.iter_mut().zip(logits).enumerate() {
                let tie_kept = (logit == last_logit) & (first_id + offset as u32 <= last_id);
                *weight = if (logit > last_logit) | tie_kept { *weight } else { 0.0 };
            }
            *block_sum = f64::from(sum(weights, |weight| weight));
            total += *block_sum;
        }
        total
    }
}

/// The token at `target` (0 to the total) of the cumulative weights in order of token id: inverse CDF.
///
/// Never a token of weight zero, provided that some weight is not zero. If rounding leaves the target beyond the last sum, it
/// is a token of the last block that has any weight.
pub(super) fn draw(target: f64, weights: &[f32], block_sums: &[f64]) -> u32 {
    let mut missing = target;
    let mut block = 0;
    for (index, &block_sum) in
        block_sums.iter().enumerate().filter(|(_, block_sum)| **block_sum > 0.0)
    {
        block = index;
        if missing < block_sum {
            break;
        }
        missing -= block_sum;
    }
    let first = block * BLOCK;
    let mut token = first;
    for (offset, &weight) in
        weights[first..].iter().take(BLOCK).enumerate().filter(|(_, weight)| **weight > 0.0)
    {
        token = first + offset;
        if missing < f64::from(weight) {
            break;
        }
        missing -= f64::from(weight);
    }
    token as u32
}

/// Sums `value` of every number in lanes, whose order of addition is fixed.
#[inline(always)]
fn sum(numbers: &[f32], value: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += value(chunk[lane]);
        }
    }
    for (lane, &number) in lanes.iter_mut().zip(tail) {
        *lane += value(number);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Below this, 2^x would be subnormal; it counts as zero.
const MIN_EXPONENT: f32 = -126.0;
/// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
const ROUNDER: f32 = 12_582_912.0;
/// 2^f = 1 + c1 f + ... + c5 f^5 on [-0.5, 0.5], minimax in relative error (9.2e-8) with the constant term held at 1.
#[expect(clippy::approx_constant, reason = "the first coefficient is near ln 2, and not it")]
const EXP2: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_34, 0.009_671_494, 0.001_326_462_6];

/// 2^x for x <= 0, to a relative error of 3e-7; exactly 1 at 0; 0 below [`MIN_EXPONENT`] and for NaN.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    let shifted = x + ROUNDER;
    let fraction = x - (shifted - ROUNDER);
    let mut polynomial = EXP2[4];
    for coefficient in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
        polynomial = polynomial * fraction + coefficient;
    }
    // The integer part, moved from the low mantissa bits, is added to the exponent.
    let power = f32::from_bits(polynomial.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x >= MIN_EXPONENT { power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_keeps_its_error_bound() {
        let mut worst = 0.0f64;
        for step in 0..=1_260_000 {
            let x = -(step as f32) * 1e-4;
            if x >= MIN_EXPONENT {
                worst = worst.max((f64::from(exp2(x)) / f64::from(x).exp2() - 1.0).abs());
            }
        }
        assert!(worst < 3e-7, "relative error {worst:e}");
        assert_eq!(exp2(0.0), 1.0);
        assert_eq!(exp2(-1.0), 0.5);
        assert_eq!(exp2(MIN_EXPONENT), f32::MIN_POSITIVE);
        assert_eq!([exp2(-126.1), exp2(-1e30), exp2(f32::NEG_INFINITY), exp2(f32::NAN)], [0.0; 4]);
    }

    #[test]
    fn sum_exp_matches_f64() {
        for len in [1, 15, 16, 17, 255, 256, 257, 5000] {
            let logits: Vec<f32> =
                (0..len).map(|i| ((i * 7919) % 1000) as f32 * 0.02 - 9.0).collect();
            let max = scan(&logits).max;
            let exact: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
            assert!((sum_exp(&logits, max) / exact - 1.0).abs() < 2e-6, "{len} logits");
        }
    }

    #[test]
    fn scan_finds_maximum_and_breakage_anywhere() {
        for len in [1, 16, 33] {
            for place in 0..len {
                let mut logits = vec![-1.0; len];
                logits[place] = 3.0;
                assert_eq!(scan(&logits), Scan { max: 3.0, broken: false });
                logits[place] = f32::NEG_INFINITY;
                assert!(!scan(&logits).broken);
                for bad in [f32::NAN, f32::INFINITY] {
                    logits[place] = bad;
                    assert!(scan(&logits).broken);
                }
            }
        }
    }

    #[test]
    fn draw_inverts_the_cumulative_weights() {
        let mut weights = vec![0.0f32; 3 * BLOCK + 5];
        for (id, weight) in [(3, 1.0), (BLOCK + 1, 2.0), (BLOCK + 2, 0.5), (3 * BLOCK + 4, 0.5)] {
            weights[id] = weight;
        }
        let block_sums: Vec<f64> =
            weights.chunks(BLOCK).map(|b| b.iter().map(|&w| f64::from(w)).sum()).collect();
        let at = |target| draw(target, &weights, &block_sums) as usize;
        assert_eq!([at(0.0), at(0.99), at(1.0), at(2.99)], [3, 3, BLOCK + 1, BLOCK + 1]);
        assert_eq!(
            [at(3.0), at(3.5), at(4.0), at(9.0)],
            [BLOCK + 2, 3 * BLOCK + 4, 3 * BLOCK + 4, 3 * BLOCK + 4]
        );
    }
}
