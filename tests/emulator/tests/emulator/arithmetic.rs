//! Arithmetic of the device is that of the host, to the bit. The kernel is `arithmetic` in
//! ptx/semantics.cu.

use crate::common::{Gpu, with};
use half::{bf16, f16};

/// Values with a bit of everything: small, huge, subnormal, infinite, NaN.
fn inputs() -> Vec<u32> {
    let special = [
        0,
        1,
        0x8000_0000,
        0x3F80_0000,
        0xBF80_0000,
        0x7F80_0000,
        0x7FC0_0000,
        0x0080_0000,
        0x0000_1234,
        0x4B00_0001,
        0x4F7F_FFFF,
        0xFFFF_FFFF,
    ];
    let mut random = 0x1234_5678u32;
    let mut values: Vec<u32> = (0..192)
        .map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Exponents near 0, so that products and sums stay in range.
            if random & 0x100 == 0 { random & 0x83FF_FFFF | 0x3C00_0000 } else { random }
        })
        .collect();
    for (at, value) in special.into_iter().enumerate() {
        values[at] = value;
        values[64 + (at * 5 + 3) % 60] = value;
        values[128 + (at * 7 + 1) % 60] = value;
    }
    values
}

/// Reference of `arithmetic` for one thread.
fn arithmetic_reference(a: u32, b: u32, c: u32) -> Vec<u32> {
    let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
    let joined = u64::from(b) << 32 | u64::from(a);
    let d = f64::from(x) * f64::from(y) + f64::from(z);
    let d = if (f64::from(x) * f64::from(y)).is_finite() {
        f64::from(x).mul_add(f64::from(y), f64::from(z))
    } else {
        d
    };
    let perm = (0..4)
        .fold(0u32, |r, k| r | ((joined >> (8 * (c >> (4 * k) & 7))) as u32 & 0xFF) << (8 * k));
    let f32_of_half = f16::from_bits(c as u16).to_f32();
    // The exact values, for the directed roundings.
    let up = |exact: f64| {
        let near = exact as f32;
        if f64::from(near) < exact { near.next_up() } else { near }
    };
    // A sum of two f32 may have more bits than f64: its error decides where f64 sees none.
    let down_sum = |x: f64, y: f64| {
        let sum = x + y;
        let error = if x.abs() >= y.abs() { y - (sum - x) } else { x - (sum - y) };
        let near = sum as f32;
        let beyond = f64::from(near) > sum || f64::from(near) == sum && error < 0.0;
        if beyond { near.next_down() } else { near }
    };
    let product = f64::from(x) * f64::from(y);
    vec![
        ((u64::from(a) * u64::from(b)) >> 32) as u32,
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
        a / (b | 1),
        (a as i32).wrapping_rem((b | 1) as i32) as u32,
        a.count_ones(),
        a.leading_zeros(),
        a.reverse_bits(),
        if a == 0 { 0 } else { a.trailing_zeros() + 1 },
        perm,
        (joined << (c & 31) >> 32) as u32,
        (joined >> c.min(32)) as u32,
        (a & b) | (!a & c),
        (u64::from(a).wrapping_mul(u64::from(b)).wrapping_add(u64::from(c)) >> 17) as u32,
        ((i64::from(a as i32) * i64::from(b as i32)) >> 40) as u32,
        x.mul_add(y, z).to_bits(),
        (x / y).to_bits(),
        x.sqrt().to_bits(),
        0,
        0,
        0,
        down_sum(f64::from(x), f64::from(y)).to_bits(),
        up(product).to_bits(),
        x as i32 as u32,
        y.round_ties_even() as i32 as u32,
        z as u32,
        (a as i32 as f32).to_bits(),
        (b as f32).to_bits(),
        u32::from(bf16::from_f32(x).to_bits()),
        u32::from(f16::from_f32(y).to_bits()),
        f32_of_half.to_bits(),
        0,
        u32::from((f16::from_bits(a as u16) + f16::from_bits(b as u16)).to_bits()),
        x.floor().to_bits(),
        y.round_ties_even().to_bits(),
        u32::from(x < y),
        u32::from(x < y || x.is_nan() || y.is_nan()),
        if x > 0.0 { x.min(1.0) } else { 0.0 }.to_bits(),
        (d.to_bits() >> 32) as u32,
        d.to_bits() as u32,
        ((a as i16) >> 3) as i32 as u32,
        u32::from((a.wrapping_add(b)) as u8),
        (i32::from(a as i8) * 3) as u32,
    ]
}

/// Which results of `arithmetic` are floating-point: 32 bits, 16 bits of bf16 or f16, or the halves
/// of an f64.
fn is_nan(k: usize, bits: u32) -> bool {
    match k {
        14..=21 | 25..=26 | 29 | 32..=33 | 36 => f32::from_bits(bits).is_nan(),
        27 | 30 => bf16::from_bits(bits as u16).is_nan(),
        28 | 31 => f16::from_bits(bits as u16).is_nan(),
        37 => bits & 0x7FF8_0000 == 0x7FF8_0000,
        _ => false,
    }
}

#[test]
fn arithmetic_agrees_with_the_host() {
    with(|gpu, module| {
        let values = inputs();
        let (from, to) = (gpu.upload(&values), gpu.alloc(42 * 64 * 4));
        module.launch("arithmetic", 1, 64, 0, vec![to.into(), from.into()]).unwrap();
        let got: Vec<u32> = gpu.download(to, 42 * 64).unwrap();
        for i in 0..64 {
            let (a, b, c) = (values[i], values[64 + i], values[128 + i]);
            let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            for (k, wanted) in arithmetic_reference(a, b, c).into_iter().enumerate() {
                let got = got[k * 64 + i];
                let exact = f64::from(x) * f64::from(y) + f64::from(z);
                let says = || {
                    format!("result {k} of {a:#x} {b:#x} {c:#x}: {got:#x} instead of {wanted:#x}")
                };
                match k {
                    // The lesser and the greater: the other where one is NaN.
                    17 | 18 => {
                        let wanted = if k == 17 { x.min(y) } else { x.max(y) };
                        assert!(
                            f32::from_bits(got) == wanted || wanted.is_nan() && is_nan(k, got),
                            "{}",
                            says()
                        );
                    }
                    // Towards zero: never beyond the exact value, and within one step of it.
                    19 if exact.is_finite() && exact.abs() < f64::from(f32::MAX) => {
                        let got = f32::from_bits(got);
                        let next = if exact > 0.0 { got.next_up() } else { got.next_down() };
                        let slack = exact.abs() * 1e-15;
                        assert!(
                            f64::from(got).abs() <= exact.abs() + slack
                                && f64::from(next).abs() >= exact.abs() - slack,
                            "{}",
                            says()
                        );
                    }
                    30 => {
                        let [p, q, r] =
                            [a, b, c].map(|v| f64::from(bf16::from_bits(v as u16).to_f32()));
                        let wanted = p * q + r;
                        let got = f64::from(bf16::from_bits(got as u16).to_f32());
                        assert!(
                            got == wanted
                                || got.is_nan() && wanted.is_nan()
                                || (got - wanted).abs() <= wanted.abs() / 256.0 + 1e-40
                                || got.is_infinite(),
                            "{}",
                            says()
                        );
                    }
                    19 => {}
                    // NaN has no certain bits; f64's lower half is then free too.
                    38 if is_nan(37, got_high(&got_all(gpu, to), i)) => {}
                    _ if is_nan(k, wanted) => assert!(is_nan(k, got), "{}", says()),
                    _ => assert_eq!(got, wanted, "{}", says()),
                }
            }
        }
        gpu.free(from);
        gpu.free(to);
    });
}

fn got_all(gpu: &Gpu, at: u64) -> Vec<u32> {
    gpu.download(at, 42 * 64).unwrap()
}

fn got_high(all: &[u32], i: usize) -> u32 {
    all[37 * 64 + i]
}
