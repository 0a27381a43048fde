//! Products of bf16 against f64, on every instruction that the CPU has.

use half::bf16;

use trail_cpu_kernels::{Dtype, Packing, PairKernels, Product, pairs_of};

use super::{numbers, stored};

/// The product of `rows` rows of `x` with `cols` rows of weights, of length `k`.
fn product(
    kernels: &PairKernels,
    x: &[f32],
    weights: &[u8],
    (rows, cols, k): (usize, usize, usize),
) -> Vec<f32> {
    let stride = Packing::stride(pairs_of(k));
    let mut pairs = vec![f32::NAN; rows * stride];
    for (x, pairs) in x.chunks_exact(k).zip(pairs.chunks_exact_mut(stride)) {
        kernels.round_row(x, pairs);
    }
    let mut out = vec![f32::NAN; rows * cols];
    let (packing, dtype, k) = (Packing::NATURAL, Dtype::F32, pairs_of(k));
    kernels.product(Product {
        x: &pairs,
        packing,
        rows,
        weights,
        dtype,
        cols,
        k,
        next: 0,
        out: &mut out,
    });
    out
}

#[test]
fn bf16_products_are_right_and_have_the_same_bits_in_any_tile() {
    for kernels in PairKernels::available() {
        for (rows, cols, k) in
            [(1, 1, 2), (2, 5, 32), (3, 4, 64), (7, 6, 98), (13, 9, 4300), (27, 4, 130)]
        {
            let x = numbers(1, rows * k);
            let (bytes, w) = stored(Dtype::Bf16, 2, cols * k);
            let all = product(kernels, &x, &bytes[1..], (rows, cols, k));
            for row in 0..rows {
                let x = &x[row * k..][..k];
                let alone = product(kernels, x, &bytes[1..], (1, cols, k));
                assert_eq!(alone, all[row * cols..][..cols], "{} {k}", kernels.name);
                for (col, sum) in alone.into_iter().enumerate() {
                    let rounded = x.iter().map(|x| bf16::from_f32(*x).to_f64());
                    let terms = rounded.zip(&w[col * k..]).map(|(x, w)| x * f64::from(*w));
                    let size: f64 = terms.clone().map(f64::abs).sum();
                    let error = (f64::from(sum) - terms.sum::<f64>()).abs();
                    // As f32's: a lane adds k / lanes terms.
                    let roundings = (k as f64 / 4.0).sqrt() + 8.0;
                    assert!(error <= size * roundings * 2_f64.powi(-24), "{} {k}", kernels.name);
                }
            }
        }
    }
}

/// Every value that rounding treats differently, at an odd length.
#[test]
fn rows_are_rounded_to_even_and_padded_with_zeros() {
    let bits = [0x3f80_7fff, 0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x7f7f_ffff, 0xff80_0000];
    let mut x: Vec<f32> = bits.map(f32::from_bits).into();
    x.extend([-0.0, 1e-40, f32::NAN, f32::from_bits(0x7fff_ffff), -3.1]);
    let expected: Vec<u16> = x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
    for kernels in PairKernels::available() {
        let mut out = vec![7.0; Packing::stride(pairs_of(x.len()))];
        kernels.round_row(&x, &mut out);
        let halves =
            out.iter().flat_map(|pair| [pair.to_bits() as u16, (pair.to_bits() >> 16) as u16]);
        for (i, half) in halves.enumerate() {
            match expected.get(i) {
                Some(_) if x[i].is_nan() => assert!(bf16::from_bits(half).is_nan()),
                Some(&expected) => assert_eq!(half, expected, "{}", x[i]),
                None => assert_eq!(half, 0),
            }
        }
    }
}
