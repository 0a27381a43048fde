//! Passes over a whole vocabulary: maximum, exponentials, block sums, and the draw.
//!
//! A *weight* is an unnormalised probability, relative to the most likely token, whose weight is
//! exactly 1. Weights are f32, summed per block of [`BLOCK`] tokens in f32 lanes, and over blocks
//! in f64. Lanes, blocks and their order are fixed and no multiply-add is fused, so the bits of the
//! result are the same on every CPU, with or without AVX2.

use std::f32::consts::LOG2_E;

use super::exp2::exp2;
use super::widest::widest;

/// Tokens per partial sum: the draw walks the block sums, then one block.
pub(super) const BLOCK: usize = 256;
/// Independent accumulators, enough to fill two AVX2 registers.
const LANES: usize = 16;

/// Result of a scan of the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scan {
    /// The largest logit that is not NaN; minus infinity if there is none.
    pub(super) max: f32,
    /// True if there is a NaN or plus infinity. (Minus infinity is a masked token, which is valid.)
    pub(super) broken: bool,
}

widest! {
    /// Scans all logits.
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
        Scan {
            max: max.into_iter().fold(f32::NEG_INFINITY, f32::max),
            broken: broken.iter().any(|&lane| lane != 0),
        }
    }
}

widest! {
    /// Returns the lowest token id whose logit is `max`; 0 if there is none.
    fn first_at(max: f32, logits: &[f32]) -> u32 {
        for (block, logits) in logits.chunks(BLOCK).enumerate() {
            let mut found = false;
            for &logit in logits {
                found |= logit == max;
            }
            if found {
                let offset = logits.iter().position(|&logit| logit == max).unwrap_or(0);
                return (block * BLOCK + offset) as u32;
            }
        }
        0
    }
}

widest! {
    /// Returns the number of tokens before `id` in the order of ranks: those with a higher logit,
    /// and those of a lower id with the same.
    fn count_better(id: u32, logits: &[f32]) -> u32 {
        let bar = logits[id as usize];
        let (before, after) = logits.split_at(id as usize);
        let mut count = 0u32;
        for &logit in before {
            count += u32::from(logit >= bar);
        }
        for &logit in after {
            count += u32::from(logit > bar);
        }
        count
    }
}

widest! {
    /// Returns the sum of exp(logit - max).
    fn sum_exp(logits: &[f32], max: f32) -> f64 {
        let mut total = 0.0;
        for block in logits.chunks(BLOCK) {
            total += f64::from(sum(block, |logit| exp2((logit - max) * LOG2_E)));
        }
        total
    }
}

/// Parameters of the weights: exp((logit - max) / temperature), or 0 where that is below `floor`.
#[derive(Clone, Copy)]
pub(super) struct Tempering {
    /// The largest logit.
    pub(super) max: f32,
    /// Divisor of the logits; above zero.
    pub(super) temperature: f32,
    /// Smallest weight that is kept: min-p, as the largest weight is 1.
    pub(super) floor: f32,
}

widest! {
    /// Fills `weights` and their block sums; returns the total.
    fn weigh(
        logits: &[f32],
        tempering: Tempering,
        weights: &mut [f32],
        block_sums: &mut [f64]
    ) -> f64 {
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
    /// Zeroes the weights of all tokens that rank after `last`, a token with its logit; returns the
    /// new total.
    ///
    /// Tokens rank by logit, best first, and by id among equal logits.
    fn keep_through(
        last: (u32, f32),
        logits: &[f32],
        weights: &mut [f32],
        block_sums: &mut [f64]
    ) -> f64 {
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

/// Mass and number of the weights above a bound.
#[derive(Clone, Copy)]
pub(super) struct Above {
    /// The bound.
    pub(super) weight: f32,
    /// Sum of all greater weights.
    pub(super) mass: f64,
    /// Number of all greater weights.
    pub(super) tokens: usize,
}

widest! {
    /// Sums and counts the weights above `weight`.
    fn above(weights: &[f32], weight: f32) -> Above {
        let mut above = Above { weight, mass: 0.0, tokens: 0 };
        for block in weights.chunks(BLOCK) {
            above.mass += f64::from(sum(block, |other| if other > weight { other } else { 0.0 }));
            // A 32-bit count has twice as many vector lanes as a usize.
            let mut tokens = 0u32;
            for &other in block {
                tokens += u32::from(other > weight);
            }
            above.tokens += tokens as usize;
        }
        above
    }
}

/// Returns the token at `target` (0 to the total) of the cumulative weights in order of token id:
/// inverse CDF.
///
/// Never a token of weight zero, if any weight is above zero. If rounding leaves the target beyond
/// the last sum, it is a token of the last block with a weight above zero.
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

/// Sums `value` of every number in lanes, in a fixed order of addition.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The test is compiled without AVX2, so it runs each pass again with narrower instructions.
    #[test]
    fn avx2_gives_the_same_bits() {
        let logits: Vec<f32> =
            (0..5003).map(|i| ((i * 7919) % 5003) as f32 * 0.004 - 9.0).collect();
        let Scan { max, .. } = scan(&logits);
        let (mut weights, mut block_sums) =
            (vec![0.0; logits.len()], vec![0.0; logits.len().div_ceil(BLOCK)]);
        let total = weigh(
            &logits,
            Tempering { max, temperature: 0.7, floor: 1e-5 },
            &mut weights,
            &mut block_sums,
        );
        for (&logit, &weight) in logits.iter().zip(&weights) {
            let plain = exp2((logit - max) * (LOG2_E / 0.7));
            assert_eq!(weight.to_bits(), if plain >= 1e-5 { plain.to_bits() } else { 0 });
        }
        let plain_total: f64 =
            weights.chunks(BLOCK).map(|block| f64::from(sum(block, |weight| weight))).sum();
        assert_eq!(total.to_bits(), plain_total.to_bits());
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
