//! Register operations of each instruction set against plain Rust.

use super::*;

/// Instantiates the tests for an implementation; they pass where the CPU lacks it.
macro_rules! registers {
    ($($name:ident: $V:ty, $isa:ident;)*) => {$(
        #[test]
        fn $name() {
            if crate::Isa::$isa.is_available() {
                // SAFETY: the CPU has it.
                unsafe { check::<$V>() }
            }
        }
    )*};
}

registers! {
    portable: Portable, Portable;
}
#[cfg(target_arch = "x86_64")]
registers! {
    avx2: Avx2, Avx2;
    avx512: Avx512, Avx512;
}
#[cfg(target_arch = "aarch64")]
registers! {
    neon: Neon, Neon;
}

/// # Safety
///
/// The CPU must have `V`'s instructions.
unsafe fn check<V: Bytes>() {
    let a: Vec<f32> = (0..V::LANES).map(|i| 1.5 * i as f32 - 3.0).collect();
    let b: Vec<f32> = (0..V::LANES).map(|i| 7.0 - i as f32).collect();
    // SAFETY: the vectors have LANES floats; the caller guarantees `V`'s instructions.
    let (ra, rb) = unsafe { (V::load(a.as_ptr()), V::load(b.as_ptr())) };
    let lanes = |r: V| {
        let mut out = vec![0.0; V::LANES];
        // SAFETY: `out` has LANES floats.
        unsafe { r.store(out.as_mut_ptr()) };
        out
    };
    let zip = |f: fn(f32, f32) -> f32| a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>();
    assert_eq!(lanes(ra.add(rb)), zip(|a, b| a + b));
    assert_eq!(lanes(ra.sub(rb)), zip(|a, b| a - b));
    assert_eq!(lanes(ra.mul(rb)), zip(|a, b| a * b));
    assert_eq!(lanes(ra.div(rb)), zip(|a, b| a / b));
    assert_eq!(lanes(ra.max(rb)), zip(f32::max));
    assert_eq!(lanes(ra.min(rb)), zip(f32::min));
    assert_eq!(lanes(ra.mul_add(rb, ra)), zip(|a, b| a * b + a));
    assert_eq!(ra.max_lane(), a[V::LANES - 1]);
    let (sum_a, sum_b) = (a.iter().sum::<f32>(), b.iter().sum::<f32>());
    assert_eq!(V::sum4([ra, rb, rb, ra]), [sum_a, sum_b, sum_b, sum_a]);
    for n in [-126.0, -1.0, 0.0, 5.0, 127.0_f32] {
        // SAFETY: the caller guarantees `V`'s instructions.
        let biased = unsafe { V::splat(n + 12_582_912.0) };
        assert_eq!(lanes(biased.pow2_of_biased()), vec![n.exp2(); V::LANES]);
    }
    // SAFETY: as above.
    unsafe {
        check_loads::<V>();
        check_words::<V>();
        check_bytes::<V>();
    }
}

/// Checks the operations on bytes, at odd addresses.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
unsafe fn check_bytes<V: Bytes>() {
    let bytes: Vec<u8> = (0..20 * MAX_LANES).map(|i| (i * 89 + 3) as u8).collect();
    let rows: [*const u8; MAX_LANES] = std::array::from_fn(|i| bytes[19 * i..].as_ptr());
    let lanes = |words: V::Words| {
        let mut out = vec![0; V::LANES];
        // SAFETY: `out` has LANES integers.
        unsafe { V::store_words(words, out.as_mut_ptr()) };
        out
    };
    // SAFETY: 17 bytes follow each row; the caller guarantees `V`'s instructions.
    let columns = unsafe { V::load_columns(&rows, 1) };
    for (d, words) in columns.into_iter().enumerate() {
        for (row, word) in lanes(words).into_iter().enumerate() {
            assert_eq!(word.to_le_bytes(), bytes[19 * row + 1 + 4 * d..][..4]);
        }
    }
    let expect = |words: V::Words, expected: &dyn Fn(u32) -> u32| {
        assert_eq!(lanes(words), lanes(columns[0]).into_iter().map(expected).collect::<Vec<_>>());
    };
    let mut halves = vec![0.0_f32; V::LANES];
    // SAFETY: `halves` has LANES floats.
    unsafe { V::low_half(V::and(columns[0], 0xffff_7bff)).store(halves.as_mut_ptr()) };
    for (half, word) in halves.into_iter().zip(lanes(columns[0])) {
        assert_eq!(half, half::f16::from_bits(word as u16 & 0x7bff).to_f32());
    }
    // SAFETY: as above; `lanes` returns LANES integers.
    let (same, splat) =
        unsafe { (V::load_words(lanes(columns[0]).as_ptr()), V::splat_word(bytes[1..].as_ptr())) };
    expect(same, &|word| word);
    let first = u32::from_le_bytes(bytes[1..5].try_into().unwrap());
    assert_eq!(lanes(splat), vec![first; V::LANES]);
    expect(V::xor(same, 0x8080_8080), &|word| word ^ 0x8080_8080);
    for byte in 0..4 {
        expect(V::signed_byte(same, byte), &|word| word.to_le_bytes()[byte as usize] as i8 as u32);
    }
    expect(V::spread_bits(same), &|word| {
        (0..4).map(|i| (word >> i & 1) << (8 * i + 4)).sum::<u32>()
    });
    expect(V::dot_halves(same, [-128, 3]), &|word| {
        (i32::from(word as i16) * -128 + i32::from((word >> 16) as i16) * 3) as u32
    });
}

/// Checks the exact products of all pairs of extreme bytes.
///
/// # Safety
///
/// The CPU must have the instructions of `V` and `D`.
unsafe fn check_dot<V: Bytes, D: ByteDot<V>>() {
    /// # Safety
    ///
    /// As the function around it.
    unsafe fn dot<V: Bytes, D: ByteDot<V>>(q: [u8; 4], x: [i8; 4], wide: bool) -> i32 {
        let start = 5_i32.to_le_bytes();
        let mut out = [0; MAX_LANES];
        // SAFETY: the arrays have four bytes and MAX_LANES integers; the caller guarantees the
        // instructions.
        unsafe {
            let (q, x) = (V::splat_word(q.as_ptr()), V::splat_word(x.as_ptr().cast()));
            let start = V::splat_word(start.as_ptr());
            V::store_words(D::dot(start, q, x, wide), out.as_mut_ptr());
        }
        out[V::LANES - 1] as i32
    }
    let xs = [-127_i8, -126, -1, 0, 1, 77, 127];
    for q in [0_u8, 1, 15, 63, 127, 128, 200, 255] {
        for other in [0_u8, 1, 100, 127, 255] {
            for (a, b) in xs.into_iter().flat_map(|a| xs.map(|b| (a, b))) {
                let (qs, xs) = ([q, other, q, 255 - q], [a, b, b, a]);
                let products = qs.iter().zip(xs).map(|(&q, x)| i32::from(q) * i32::from(x));
                let expected = 5 + products.sum::<i32>();
                // SAFETY: the caller guarantees the instructions.
                unsafe {
                    assert_eq!(dot::<V, D>(qs, xs, true), expected, "{qs:?} {xs:?}");
                    if qs.iter().all(|&q| q < 128) {
                        assert_eq!(dot::<V, D>(qs, xs, false), expected, "{qs:?} {xs:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_bytes_are_exact() {
    // SAFETY: the CPU has the instructions of each.
    unsafe {
        check_dot::<Portable, PlainDot>();
        #[cfg(target_arch = "x86_64")]
        {
            if crate::Isa::Avx2.is_available() {
                check_dot::<Avx2, Maddubs>();
            }
            if crate::Isa::Avx2.is_available() && crate::cpu_has!("avxvnni") {
                check_dot::<Avx2, AvxVnni>();
            }
            if crate::Isa::Avx512.is_available() {
                check_dot::<Avx512, Maddubs512>();
            }
            if crate::Isa::Avx512.is_available() && crate::cpu_has!("avx512vnni") {
                check_dot::<Avx512, Avx512Vnni>();
            }
            if crate::cpu_has!("avx512vl") && crate::cpu_has!("avx512vnni") {
                check_dot::<Avx2, Avx512VlVnni>();
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            check_dot::<Neon, NeonMull>();
            if crate::cpu_has!("dotprod") {
                check_dot::<Neon, NeonDotprod>();
            }
            if crate::cpu_has!("i8mm") {
                check_dot::<Neon, NeonI8mm>();
            }
        }
    }
}

/// # Safety
///
/// The CPU must have the instructions of `V` and `D`.
unsafe fn check_pairs<V: Simd, D: PairDot<V>>() {
    let values = [0.0_f32, 1.0, -1.5, 0.0078125, 3.140625, -250.0, 1e15, 1e-15];
    let pair = |low: f32, high: f32| f32::from_bits(low.to_bits() >> 16 | high.to_bits() & !0xffff);
    let mut out = [0.0; MAX_LANES];
    for (i, w0) in values.into_iter().enumerate() {
        for (j, x1) in values.into_iter().enumerate() {
            let (w1, x0) = (values[(i + 3) % 8], values[(j + 5) % 8]);
            // SAFETY: `out` has MAX_LANES values; the caller guarantees the instructions.
            unsafe {
                let (w, x) = (V::splat(pair(w0, w1)), V::splat(pair(x0, x1)));
                D::dot(V::splat(0.5), w, x).store(out.as_mut_ptr());
            }
            let bf16 = |x: f32| f64::from(f32::from_bits(x.to_bits() & !0xffff));
            let terms = [0.5, bf16(w0) * bf16(x0), bf16(w1) * bf16(x1)];
            // Three roundings at most; numbers below the normal ones count as zero.
            let size: f64 = terms.iter().map(|term| term.abs()).sum();
            let error = (f64::from(out[V::LANES - 1]) - terms.iter().sum::<f64>()).abs();
            assert!(error <= size * 3.0 * 2_f64.powi(-24), "{w0} {x0} + {w1} {x1}: {error:e}");
        }
    }
}

#[test]
fn products_of_pairs_are_sums_of_two() {
    // SAFETY: the CPU has the instructions of each.
    unsafe {
        check_pairs::<Portable, PlainPairs>();
        #[cfg(target_arch = "x86_64")]
        if crate::Isa::Avx512.is_available() && crate::cpu_has!("avx512bf16") {
            check_pairs::<Avx512, Avx512Bf16>();
        }
    }
}

/// Checks the integer operations on bytes at an odd address.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
unsafe fn check_words<V: Simd>() {
    let bytes: Vec<u8> = (0..=V::LANES as u8).map(|i| i.wrapping_mul(89).wrapping_add(3)).collect();
    let p = bytes[1..].as_ptr();
    // SAFETY: LANES bytes follow `p`; the caller guarantees `V`'s instructions.
    let (words, signed) = unsafe { (V::load_u8(p), V::load_i8(p)) };
    let check = |words: V::Words, expected: &dyn Fn(usize, u32) -> u32| {
        let mut out = vec![0.0_f32; V::LANES];
        // SAFETY: `out` has LANES floats.
        unsafe { V::to_f32(words).store(out.as_mut_ptr()) };
        for (lane, (&out, &byte)) in out.iter().zip(&bytes[1..]).enumerate() {
            assert_eq!(out, expected(lane, byte.into()) as i32 as f32, "lane {lane}");
        }
    };
    check(words, &|_, byte| byte);
    check(signed, &|_, byte| i32::from(byte as i8) as u32);
    for bits in [0, 1, 4, 7] {
        check(V::shift_right(words, bits), &|_, byte| byte >> bits);
        check(V::shift_left(words, bits), &|_, byte| byte << bits);
        check(V::or(V::and(words, 15), V::shift_left(words, bits)), &|_, byte| {
            byte & 15 | byte << bits
        });
    }
    // SAFETY: the caller guarantees `V`'s instructions.
    let table = unsafe { V::nibble_table(V::splat(0.25), V::splat(-3.0)) };
    for (bits, words) in [(0, words), (4, V::shift_right(words, 4))] {
        let mut out = vec![0.0_f32; V::LANES];
        // SAFETY: `out` has LANES floats.
        unsafe { V::nibble_values(table, words).store(out.as_mut_ptr()) };
        for (&out, &byte) in out.iter().zip(&bytes[1..]) {
            assert_eq!(out, 0.25 * f32::from(byte >> bits & 15) - 3.0);
        }
    }
    let table: [u8; 16] = std::array::from_fn(|i| (37 * i + 5) as u8);
    for bits in [0, 8, 24] {
        // Every byte of a lane is looked up.
        let found = V::lookup(V::shift_left(V::and(words, 15), bits), table);
        check(V::and(V::shift_right(found, bits), 255), &|_, byte| {
            table[byte as usize & 15].into()
        });
    }
    let lanes = 0b1010_0110_1100_1001;
    check(V::or_where(V::and(words, 15), lanes, 16), &|lane, byte| {
        byte & 15 | (lanes >> lane & 1) << 4
    });
}

/// Checks every load at odd addresses.
///
/// # Safety
///
/// The CPU must have `V`'s instructions.
unsafe fn check_loads<V: Simd>() {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    for first in (0..=u16::MAX).step_by(2 * V::LANES) {
        let values: Vec<u16> = (0..2 * V::LANES as u16).map(|i| first + i).collect();
        let mut bytes = vec![0_u8];
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let p = bytes[1..].as_ptr();
        let mut out = vec![0.0; 5 * V::LANES];
        // SAFETY: 2 * LANES values follow `p`; `out` has room for five registers.
        unsafe {
            V::load_bf16_even(p).store(out.as_mut_ptr());
            V::load_bf16_odd(p).store(out.as_mut_ptr().add(V::LANES));
            V::load_f16(p).store(out.as_mut_ptr().add(2 * V::LANES));
            V::load_bf16(p).store(out.as_mut_ptr().add(3 * V::LANES));
            V::splat_f16(p).store(out.as_mut_ptr().add(4 * V::LANES));
        }
        for i in 0..V::LANES {
            assert!(same(out[i], half::bf16::from_bits(values[2 * i]).to_f32()));
            assert!(same(out[V::LANES + i], half::bf16::from_bits(values[2 * i + 1]).to_f32()));
            assert!(same(out[2 * V::LANES + i], half::f16::from_bits(values[i]).to_f32()));
            assert!(same(out[3 * V::LANES + i], half::bf16::from_bits(values[i]).to_f32()));
            assert!(same(out[4 * V::LANES + i], half::f16::from_bits(values[0]).to_f32()));
        }
    }
}
