//! Rounding as IEEE 754 has it, for the modes that the instructions of the host do not offer.

use half::{bf16, f16};

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To nearest, ties to even.
    Nearest,
    Zero,
    Down,
    Up,
}

impl Mode {
    /// From a modifier: `rn` or `rni`.
    pub(crate) fn parse(modifier: &str) -> Mode {
        match modifier.as_bytes().get(1) {
            Some(b'z') => Mode::Zero,
            Some(b'm') => Mode::Down,
            Some(b'p') => Mode::Up,
            _ => Mode::Nearest,
        }
    }
}

/// `a + b` with its error: both exact together.
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

/// The exact value `sum + error`, rounded to f32.
#[inline(always)]
pub(crate) fn to_f32(sum: f64, error: f64, mode: Mode) -> f32 {
    let near = sum as f32;
    if mode == Mode::Nearest && error == 0.0 || !sum.is_finite() {
        return near;
    }
    if mode == Mode::Nearest {
        return odd(sum, error) as f32;
    }
    let above = f64::from(near) - sum;
    let (is_above, is_below) = (above > error, above < error);
    match mode {
        Mode::Down | Mode::Zero if is_above && (mode == Mode::Down || sum > 0.0) => {
            near.next_down()
        }
        Mode::Up | Mode::Zero if is_below && (mode == Mode::Up || sum < 0.0) => near.next_up(),
        _ => near,
    }
}

/// Makes the last bit of `sum` stand for a lost error, so that a second rounding to fewer bits is
/// exact.
#[inline(always)]
pub(crate) fn odd(sum: f64, error: f64) -> f64 {
    if error == 0.0 || sum.to_bits() & 1 == 1 || !sum.is_finite() {
        return sum;
    }
    // The exact value lies between `sum` and a neighbour; one of the two is odd, and it is not
    // `sum`.
    if (error > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() | 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// A binary floating-point format: precision with the leading bit, exponents of the normal numbers.
struct Format {
    precision: i32,
    least: i32,
    largest: f64,
}

const F16: Format = Format { precision: 11, least: -14, largest: 65504.0 };
const BF16: Format = Format { precision: 8, least: -126, largest: 3.389_531_389_251_535_5e38 };

fn narrow(value: f64, format: &Format, mode: Mode) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = ((value.to_bits() >> 52 & 0x7FF) as i32 - 1023).max(format.least);
    let quantum = f64::from_bits(((exponent - format.precision + 1 + 1023) as u64) << 52);
    let scaled = value / quantum;
    let rounded = match mode {
        Mode::Nearest => scaled.round_ties_even(),
        Mode::Zero => scaled.trunc(),
        Mode::Down => scaled.floor(),
        Mode::Up => scaled.ceil(),
    };
    let result = rounded * quantum;
    if result.abs() <= format.largest {
        return result.copysign(value);
    }
    let stays = match mode {
        Mode::Nearest => false,
        Mode::Zero => true,
        Mode::Down => value > 0.0,
        Mode::Up => value < 0.0,
    };
    if stays { format.largest.copysign(value) } else { f64::INFINITY.copysign(value) }
}

/// Rounds once to f16.
pub(crate) fn to_f16(value: f64, mode: Mode) -> f16 {
    if value.is_nan() {
        f16::from_bits(0x7FFF)
    } else {
        f16::from_f32(narrow(value, &F16, mode) as f32)
    }
}

/// Rounds once to bf16.
pub(crate) fn to_bf16(value: f64, mode: Mode) -> bf16 {
    if value.is_nan() {
        bf16::from_bits(0x7FFF)
    } else {
        bf16::from_f32(narrow(value, &BF16, mode) as f32)
    }
}

/// f32 to bf16, to nearest; NaN becomes the device's.
#[inline(always)]
pub(crate) fn bf16_nearest(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7FFF } else { bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16 }
}

/// f32 to f16, to nearest; NaN becomes the device's.
#[inline(always)]
pub(crate) fn f16_nearest(value: f32) -> u32 {
    if value.is_nan() { 0x7FFF } else { u32::from(f16::from_f32(value).to_bits()) }
}

/// Subnormals become zero.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7F80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { value }
}

/// Into 0..=1; NaN becomes 0.
#[inline(always)]
pub(crate) fn saturate(value: f32) -> f32 {
    if value > 0.0 { if value > 1.0 { 1.0 } else { value } } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_modes_bracket_the_exact_sum() {
        let (sum, error) = two_sum(1.0, f64::from(f32::MIN_POSITIVE));
        assert_eq!(to_f32(sum, error, Mode::Nearest), 1.0);
        assert_eq!(to_f32(sum, error, Mode::Down), 1.0);
        assert_eq!(to_f32(sum, error, Mode::Up), 1f32.next_up());
        assert_eq!(to_f32(-sum, -error, Mode::Zero), -1.0);
        assert_eq!(to_f32(-sum, -error, Mode::Down), -(1f32.next_up()));
        assert_eq!(to_f32(f64::MAX, 0.0, Mode::Zero), f32::MAX);
        assert_eq!(to_f32(0.1, 0.0, Mode::Up), 0.1f32);
        assert_eq!(to_f32(0.1, 0.0, Mode::Down), 0.1f32.next_down());
    }

    #[test]
    fn narrow_formats_agree_with_the_half_crate_to_nearest() {
        for bits in (0..u32::MAX).step_by(65_521) {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                continue;
            }
            assert_eq!(
                to_f16(f64::from(value), Mode::Nearest).to_bits(),
                f16::from_f32(value).to_bits(),
                "{value:e}"
            );
            assert_eq!(
                to_bf16(f64::from(value), Mode::Nearest).to_bits(),
                bf16::from_f32(value).to_bits(),
                "{value:e}"
            );
            assert_eq!(bf16_nearest(value) as u16, bf16::from_f32(value).to_bits(), "{value:e}");
        }
        assert_eq!(to_f16(70000.0, Mode::Zero).to_f32(), 65504.0);
        assert_eq!(to_bf16(1.004, Mode::Up).to_f32(), 1.0078125);
    }

    #[test]
    fn a_lost_error_breaks_a_tie() {
        // 1 + 2^-8 is a tie of bf16; a little more must round up, a little less down.
        let tie = 1.0 + 2f64.powi(-8);
        assert_eq!(to_bf16(odd(tie, 1e-30), Mode::Nearest).to_f32(), 1.0078125);
        assert_eq!(to_bf16(odd(tie, -1e-30), Mode::Nearest).to_f32(), 1.0);
    }
}
