//! Fast powers of two with the same bits on every CPU: additions and multiplications, never fused.

/// Below this exponent 2^x would be subnormal; the result is 0.
const MIN_EXPONENT: f32 = -126.0;
/// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
const ROUNDER: f32 = 12_582_912.0;
/// 2^f = 1 + c1 f + ... + c5 f^5 on [-0.5, 0.5], minimax in relative error (9.2e-8) with the
/// constant term held at 1.
#[expect(clippy::approx_constant, reason = "the first coefficient is near ln 2, and not it")]
const EXP2: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_34, 0.009_671_494, 0.001_326_462_6];

/// 2^x for x <= 0, to a relative error of 3e-7; exactly 1 at 0; 0 below [`MIN_EXPONENT`] and for
/// NaN.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    let shifted = x + ROUNDER;
    let fraction = x - (shifted - ROUNDER);
    let mut polynomial = EXP2[4];
    for coefficient in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
        polynomial = polynomial * fraction + coefficient;
    }
    // Adds the integer part, which is in the low mantissa bits, to the exponent.
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
}
