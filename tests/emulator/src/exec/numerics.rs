//! Results that the PTX manual leaves open: sums of the tensor cores, and approximations. By
//! default the emulator gives the nearest value of each; with `TRAIL_EMU_NUMERICS=device` sums in
//! the manner of hardware, and approximations as far off as the manual allows.

use std::sync::OnceLock;

/// Columns of a tensor core's product that are summed at a time.
pub(crate) const COLUMNS: usize = 8;
/// Products that a tensor core adds at a time: of Hopper (an H200's sums to the bit:
/// `tests/emulator/vectors.rs`), and before it.
pub(crate) const HOPPER_STEP: usize = 16;
pub(crate) const AMPERE_STEP: usize = 8;
/// Bits below the leading one of the largest term that such a sum keeps.
const fn kept_bits(step: usize) -> i64 {
    if step == HOPPER_STEP { 25 } else { 24 }
}
/// Mantissa bits of f64 beyond those of f32.
const EXTRA_MANTISSA: u64 = (1 << 29) - 1;

/// True if results are in the manner of devices. Read once: decoded kernels are kept.
pub(crate) fn is_device() -> bool {
    static IS_DEVICE: OnceLock<bool> = OnceLock::new();
    *IS_DEVICE.get_or_init(|| {
        let name = std::env::var("TRAIL_EMU_NUMERICS").unwrap_or_default();
        if !["", "nearest", "device"].contains(&name.as_str()) {
            eprintln!(
                "trail-cuda-emulator: TRAIL_EMU_NUMERICS: `{name}` is neither nearest nor device"
            );
        }
        name == "device"
    })
}

/// Adds one step of products to `sums`: all terms are aligned to the largest exponent, of a product
/// the sum of its factors', and cut behind [`kept_bits`] bits, added exactly, and the sum is cut to
/// f32 (Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv 2512.07004). Ampere's
/// step was not compared with a device.
#[inline(always)]
pub(crate) fn add_step<const STEP: usize>(
    a: &[f32],
    b: &[[f32; COLUMNS]],
    sums: &mut [f32; COLUMNS],
) {
    let mut products = [[0f32; COLUMNS]; STEP];
    let mut exponents = sums.map(exponent);
    for ((products, &a), b) in products.iter_mut().zip(a).zip(b) {
        for n in 0..COLUMNS {
            products[n] = a * b[n];
            if products[n] != 0.0 {
                exponents[n] = exponents[n].max(exponent(a) + exponent(b[n]) - BIAS);
            }
        }
    }
    if products.iter().chain([&*sums]).flatten().any(|term| !term.is_finite()) {
        // The order does not matter.
        for products in &products {
            (0..COLUMNS).for_each(|n| sums[n] += products[n]);
        }
        return;
    }
    let scale = |exponent| 1023 + BIAS + kept_bits(STEP) - exponent;
    let scales = exponents.map(|exponent| f64::from_bits((scale(exponent) as u64) << 52));
    let mut totals = [0f64; COLUMNS];
    for terms in products.iter().chain([&*sums]) {
        for n in 0..COLUMNS {
            totals[n] += (f64::from(terms[n]) * scales[n]).trunc();
        }
    }
    for n in 0..COLUMNS {
        let sum = totals[n] / scales[n];
        sums[n] = f64::from_bits(sum.to_bits() & !EXTRA_MANTISSA) as f32;
    }
}

/// Biased exponent; 1 for numbers below the normal ones.
#[inline(always)]
fn exponent(value: f32) -> i64 {
    i64::from(value.to_bits() >> 23 & 0xff).max(1)
}

const BIAS: i64 = 127;

/// An approximation's result for `input`: `nearest`, or as far from the `exact` value as the manual
/// allows, which is `bound` units of the last place, of `floor` where the value is smaller. The
/// input decides by how much.
pub(crate) fn approximation(
    input: f32,
    nearest: f32,
    exact: impl Fn(f64) -> f64,
    bound: f64,
    floor: f64,
) -> f32 {
    // The manual has exact results for these.
    if !is_device() || input == 0.0 || !nearest.is_normal() {
        return nearest;
    }
    let exact = exact(f64::from(input));
    let unit = exact.abs().max(floor).log2().floor().exp2() * f64::from(f32::EPSILON);
    let share = f64::from(input.to_bits().wrapping_mul(0x9E37_79B9)) / f64::from(u32::MAX);
    // Half a unit is lost by rounding to f32, and more across a power of two.
    let far = (exact + (2.0 * share - 1.0) * (bound - 0.55) * unit) as f32;
    if (f64::from(far) - exact).abs() <= bound * unit { far } else { nearest }
}

/// `ex2.approx`: as [`approximation`], but the fraction of the input decides by how much, so that a
/// whole number more is a power of two more, to the bit. Kernels rely on that of hardware
/// (kernels/common/order.cuh).
pub(crate) fn exp2(input: f32) -> f32 {
    let (nearest, whole) = (input.exp2(), input.floor());
    if !is_device() || !nearest.is_normal() {
        return nearest;
    }
    let fraction = input - whole;
    approximation(fraction, fraction.exp2(), f64::exp2, 2.0, 0.0) * whole.exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One column of a step of 8.
    fn sum(products: [f32; 8], start: f32) -> f32 {
        let mut sums = [start; COLUMNS];
        add_step::<8>(&products, &[[1.0; COLUMNS]; 8], &mut sums);
        sums[COLUMNS - 1]
    }

    #[test]
    fn terms_are_cut_below_the_largest() {
        let of = |value: f32| [value, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let bit = f32::EPSILON;
        assert_eq!(sum(of(0.5), 0.25), 0.75);
        // A quarter of the last place is cut, and so is what is left of a half.
        assert_eq!(sum([bit / 4.0; 8], 1.0), 1.0);
        assert_eq!(sum(of(bit / 2.0), 1.0), 1.0);
        // Two halves make one: the bit below the last place is kept until the end.
        assert_eq!(sum([bit / 2.0, bit / 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1.0), 1.0 + bit);
        // Towards zero on both sides.
        assert_eq!(sum(of(-bit * 0.75), -1.0), -1.0);
        assert_eq!(sum([0.0; 8], 0.0), 0.0);
        assert_eq!(sum(of(f32::INFINITY), 1.0), f32::INFINITY);
        assert!(sum(of(f32::NAN), 1.0).is_nan());
    }

    /// Two bits below the last place, of 16 products; aligned to the factors' exponents.
    #[test]
    fn hopper_keeps_a_bit_more() {
        let sum = |a: [f32; 16], b: f32, start: f32| {
            let mut sums = [start; COLUMNS];
            add_step::<HOPPER_STEP>(&a, &[[b; COLUMNS]; HOPPER_STEP], &mut sums);
            sums[0]
        };
        let bit = f32::EPSILON;
        let of =
            |values: &[f32]| std::array::from_fn(|at| values.get(at).copied().unwrap_or_default());
        // Four quarters of the last place make one; eighths are cut.
        assert_eq!(sum(of(&[bit / 4.0; 4]), 1.0, 1.0), 1.0 + bit);
        assert_eq!(sum([bit / 8.0; 16], 1.0, 1.0), 1.0);
        // 1.5 * 1.5 is above 2, and its exponent that of 1: what is cut there for 2 is kept.
        let mut a = [bit / 4.0; 16];
        a[0] = 1.5;
        assert_eq!(sum(a, 1.5, 0.0), 2.25 + 2.0 * bit);
        assert_eq!(sum(of(&[f32::NEG_INFINITY]), 1.0, 1.0), f32::NEG_INFINITY);
        assert!(sum(of(&[f32::INFINITY, f32::NEG_INFINITY]), 1.0, 1.0).is_nan());
    }
}
