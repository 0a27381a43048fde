//! Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy
//! as 1, 2, 3" (SC 2011).
//!
//! It has no state: the draw for a position is a pure function of (seed, position), independent of
//! batch, device and recomputation.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for a counter under a key.
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// Uniform number in [0, 1) for (seed, position), with 53 random bits.
///
/// Counter words 1 to 3 are zero: there is one draw per position.
pub(super) fn uniform(seed: u64, position: u32) -> f64 {
    let words = philox4x32([position, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three philox4x32-10 lines of Random123's `kat_vectors`.
    #[test]
    fn known_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([!0; 4], [!0; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_is_in_range_and_even() {
        let draws = 20_000;
        let mean = (0..draws)
            .map(|p| uniform(7, p))
            .inspect(|u| assert!((0.0..1.0).contains(u)))
            .sum::<f64>()
            / f64::from(draws);
        // Standard error of the mean: 1 / sqrt(12 * draws) = 0.002.
        assert!((mean - 0.5).abs() < 0.01, "mean {mean}");
    }

    #[test]
    fn every_seed_bit_counts() {
        let base = uniform(0, 3);
        for bit in 0..64 {
            assert_ne!(uniform(1 << bit, 3), base, "seed bit {bit}");
        }
    }
}
