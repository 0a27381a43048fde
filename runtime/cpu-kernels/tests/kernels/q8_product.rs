//! Products in 8 bits against the widened weights and activations, by every instruction that the
//! CPU has.

use trail_cpu_kernels::{
    Dtype, INTERLEAVED_ROWS, Q8_VALUES, Q8Block, Q8Kernels, Q8Product, interleave,
};
use trail_platform::Isa;

use super::{numbers, stored};

/// Rows, columns and length of products; the length is rounded up to a whole block. Columns are
/// below, at and above a tile of each instruction set; lengths below and above `TILE_VALUES`.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 32), (2, 5, 64), (4, 16, 96), (7, 33, 512), (13, 9, 2100), (5, 70, 800)];

fn quantized() -> impl Iterator<Item = Dtype> {
    Dtype::ALL.into_iter().filter(|dtype| dtype.is_quantized())
}

/// Rows of activations of length `k`, in 8 bits.
fn rows(kernels: &Q8Kernels, x: &[f32], k: usize) -> Vec<Q8Block> {
    let mut out = vec![Q8Block::default(); x.len() / Q8_VALUES];
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(k / Q8_VALUES)) {
        kernels.quantize_row(x, out);
    }
    out
}

/// `[rows][cols]`, where `x` has `rows` rows.
fn product(
    kernels: &Q8Kernels,
    x: &[Q8Block],
    weights: &[u8],
    dtype: Dtype,
    shape: (usize, usize),
) -> Vec<f32> {
    product_of(kernels, x, (weights, false), dtype, shape)
}

/// The same of weights that are interleaved or not.
fn product_of(
    kernels: &Q8Kernels,
    x: &[Q8Block],
    (weights, interleaved): (&[u8], bool),
    dtype: Dtype,
    (cols, k): (usize, usize),
) -> Vec<f32> {
    let rows = x.len() / Q8Block::per_row(k);
    let (mut out, next) = (vec![f32::NAN; rows * cols], 0);
    kernels.product(Q8Product {
        x,
        rows,
        weights,
        interleaved,
        dtype,
        cols,
        k,
        next,
        out: &mut out,
    });
    out
}

/// Integers are exact; each group of a scale takes four roundings (scale, product, sum, minimum) of
/// terms up to the sum of magnitudes, with the offset of 128 at most times as large as q.
#[test]
fn product_is_that_of_the_quantized_activations_and_the_widened_weights() {
    for kernels in Q8Kernels::available() {
        for (dtype, (rows_len, cols, k)) in quantized().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let k = k.next_multiple_of(dtype.block_values());
            let x = rows(kernels, &numbers(1, rows_len * k), k);
            let (bytes, w) = stored(dtype, 2, cols * k);
            let all = product(kernels, &x, &bytes[1..], dtype, (cols, k));
            for (i, out) in all.iter().enumerate() {
                let (row, col) = (i / cols, i % cols);
                let blocks = &x[row * k / Q8_VALUES..(row + 1) * k / Q8_VALUES];
                let mut sum = 0.0;
                let mut size = 0.0;
                for (block, w) in blocks.iter().zip(w[col * k..].chunks_exact(Q8_VALUES)) {
                    let x = |i: usize| f64::from(block.q[i]) * f64::from(block.scale);
                    sum += (0..Q8_VALUES).map(|i| x(i) * f64::from(w[i])).sum::<f64>();
                    let largest = w.iter().fold(0.0_f64, |a, &w| a.max(f64::from(w).abs()));
                    size += (0..Q8_VALUES).map(|i| x(i).abs() * largest).sum::<f64>();
                }
                let error = (f64::from(*out) - sum).abs();
                let roundings = 4.0 * ((k / 16) as f64).sqrt() + 8.0;
                let limit = 4.0 * size * roundings * 2_f64.powi(-24);
                assert!(error <= limit, "{} {dtype} {k}: {error:e} {limit:e}", kernels.name);
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_other_rows_or_the_columns_of_a_call() {
    for kernels in Q8Kernels::available() {
        for (dtype, (rows_len, cols, k)) in quantized().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let k = k.next_multiple_of(dtype.block_values());
            let x = rows(kernels, &numbers(3, rows_len * k), k);
            let (bytes, _) = stored(dtype, 4, cols * k);
            let all = product(kernels, &x, &bytes[1..], dtype, (cols, k));
            for count in 2..rows_len {
                let x = &x[..count * k / Q8_VALUES];
                let first = product(kernels, x, &bytes[1..], dtype, (cols, k));
                assert_eq!(first, all[..count * cols], "{} {dtype} {count} rows", kernels.name);
            }
            for (row, expected) in all.chunks_exact(cols).enumerate() {
                let x = &x[row * k / Q8_VALUES..(row + 1) * k / Q8_VALUES];
                let alone = product(kernels, x, &bytes[1..], dtype, (cols, k));
                assert_eq!(alone, expected, "{} {dtype} row {row}", kernels.name);
                let skipped = cols / 3;
                let weights = &bytes[1 + dtype.bytes_of(skipped * k)..];
                let some = product(kernels, x, weights, dtype, (cols - skipped, k));
                assert_eq!(some, expected[skipped..], "{} {dtype} row {row}", kernels.name);
            }
        }
    }
}

/// For every number of groups below, at and above a tile.
#[test]
fn bits_do_not_depend_on_the_layout_of_weights() {
    for kernels in Q8Kernels::available() {
        for (dtype, (rows_len, groups, k)) in quantized().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let (cols, k) = (groups * INTERLEAVED_ROWS, k.next_multiple_of(dtype.block_values()));
            let x = rows(kernels, &numbers(9, rows_len * k), k);
            let (bytes, _) = stored(dtype, 10, cols * k);
            let mut interleaved = vec![0; bytes.len() - 1];
            let group = dtype.bytes_of(INTERLEAVED_ROWS * k);
            for (rows, out) in bytes[1..].chunks_exact(group).zip(interleaved.chunks_mut(group)) {
                interleave(dtype, rows, out);
            }
            let expected = product(kernels, &x, &bytes[1..], dtype, (cols, k));
            let given = product_of(kernels, &x, (&interleaved, true), dtype, (cols, k));
            assert_eq!(given, expected, "{} {dtype} {cols} x {k}", kernels.name);
        }
    }
}

/// All but plain Rust on a CPU without fused instructions, which rounds products.
#[test]
fn instructions_agree_bit_for_bit() {
    let fused: Vec<_> = Q8Kernels::available().filter(|k| k.isa() != Isa::Portable).collect();
    for (dtype, (rows_len, cols, k)) in quantized().flat_map(|d| SHAPES.map(|s| (d, s))) {
        let k = k.next_multiple_of(dtype.block_values());
        let x = numbers(5, rows_len * k);
        let (bytes, _) = stored(dtype, 6, cols * k);
        let results: Vec<Vec<u32>> = fused
            .iter()
            .map(|kernels| {
                let x = rows(kernels, &x, k);
                let out = product(kernels, &x, &bytes[1..], dtype, (cols, k));
                out.into_iter().map(f32::to_bits).collect()
            })
            .collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{dtype} {k}");
    }
}

#[test]
fn activations_are_rounded_to_a_127th_of_their_blocks_largest() {
    for kernels in Q8Kernels::available() {
        for scale in [1.0, 1e-30, 1e30] {
            let x: Vec<f32> = numbers(7, 96).iter().map(|x| x * scale).collect();
            for (block, x) in rows(kernels, &x, 96).iter().zip(x.chunks_exact(Q8_VALUES)) {
                let largest = x.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
                assert_eq!(block.scale, largest / 127.0);
                for (q, x) in block.q.iter().zip(x) {
                    // The quotient is off by three roundings of up to 127.
                    let exact = f64::from(*x) / f64::from(block.scale);
                    assert!((f64::from(*q) - exact).abs() <= 0.5 + 127.0 * 3.0 / 2_f64.powi(24));
                }
                let sums = [&block.q[..16], &block.q[16..]]
                    .map(|half| half.iter().map(|&q| i16::from(q)).sum::<i16>());
                assert_eq!(block.half_sums, sums);
                assert_eq!(block.sum, block.scale * f32::from(sums[0] + sums[1]));
            }
        }
    }
}

#[test]
fn zeros_give_zeros_and_a_damaged_activation_gives_nan() {
    for (kernels, dtype) in Q8Kernels::available().flat_map(|k| quantized().map(move |d| (k, d))) {
        let k = 256;
        let (bytes, _) = stored(dtype, 8, 3 * k);
        let mut x = vec![0.0; k];
        let zero = product(kernels, &rows(kernels, &x, k), &bytes[1..], dtype, (3, k));
        assert_eq!(zero, [0.0; 3], "{} {dtype}", kernels.name);
        x[40] = 1e-40;
        let tiny = product(kernels, &rows(kernels, &x, k), &bytes[1..], dtype, (3, k));
        assert_eq!(tiny, [0.0; 3], "{} {dtype}", kernels.name);
        for damaged in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[40] = damaged;
            let out = product(kernels, &rows(kernels, &x, k), &bytes[1..], dtype, (3, k));
            assert!(out.iter().all(|out| out.is_nan()), "{} {dtype}", kernels.name);
        }
    }
}
