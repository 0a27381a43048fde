//! Logarithms and powers of 2 without calls, so that the compiler can vectorize a loop over them.

/// log2 of a positive normal number, within 2^-22 of it or 2^-22 absolutely.
///
/// x = 2^e m with m in [sqrt(1/2), sqrt(2)); log2 m = 2 / ln 2 atanh s with s = (m - 1) / (m + 1),
/// |s| < 0.172. The series to s^9 leaves out less than 4e-10.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    const TWO_OVER_LN_2: f32 = 2.0 / std::f32::consts::LN_2;
    // Bits of sqrt(1/2): a mantissa below it belongs to the exponent before.
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3);
    let exponent = bits as i32 >> 23;
    let m = f32::from_bits((bits & 0x007f_ffff) + 0x3f35_04f3);
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = 1.0 + square * (1.0 / 3.0 + square * (0.2 + square * (1.0 / 7.0 + square / 9.0)));
    exponent as f32 + TWO_OVER_LN_2 * s * series
}

/// 2^x for x within [-126, 126], and the nearest of these beyond; within 2^-22 of it.
///
/// 2^x = 2^n 2^f with |f| <= 1/2; the Taylor series of 2^f to f^6 leaves out less than 2^-23.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    /// Adding it rounds to a whole number, in the lower bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln(2)^k / k!, from k = 1.
    const C: [f32; 6] = {
        let (mut c, mut power, mut k) = ([0.0; 6], 1.0, 0);
        while k < 6 {
            power *= std::f64::consts::LN_2 / (k + 1) as f64;
            c[k] = power as f32;
            k += 1;
        }
        c
    };
    let x = x.clamp(-126.0, 126.0);
    let rounded = x + ROUND;
    let f = x - (rounded - ROUND);
    let power = 1.0 + f * (C[0] + f * (C[1] + f * (C[2] + f * (C[3] + f * (C[4] + f * C[5])))));
    // The lower bits of `rounded` are n in two's complement.
    let exponent = rounded.to_bits().wrapping_add(127) << 23;
    f32::from_bits(exponent) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    const ULP: f64 = 1.0 / (1 << 22) as f64;

    #[test]
    fn they_are_those_of_the_library_to_22_bits() {
        let all = (0..100_000).map(|i| f32::from_bits(0x0080_0000 + i * 21_000));
        for x in all.filter(|x| x.is_normal()) {
            let exact = f64::from(x).log2();
            let error = (f64::from(log2(x)) - exact).abs();
            assert!(error <= ULP * exact.abs().max(1.0), "log2 {x}: off by {error}");
        }
        for i in -126_000..=126_000 {
            let x = (i as f32 * 1e-3).clamp(-126.0, 126.0);
            let exact = f64::from(x).exp2();
            let error = (f64::from(exp2(x)) - exact).abs();
            assert!(error <= ULP * exact, "exp2 {x}: off by {error}");
        }
        assert_eq!((exp2(-1e9), exp2(f32::INFINITY)), (exp2(-126.0), exp2(126.0)));
        assert_eq!((exp2(3.0), log2(8.0), log2(1.0)), (8.0, 3.0, 0.0));
    }
}
