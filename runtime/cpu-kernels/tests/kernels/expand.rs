//! The product of an adapter's inner values with B against plain loops.

use trail_cpu_kernels::{Dtype, Expand, Kernels};

use super::{kernels, numbers, stored};

/// Rank, outputs of the projection, first output and number of outputs of a call.
const PARTS: [(usize, usize, usize, usize); 7] = [
    (1, 1, 0, 1),
    (3, 7, 2, 5),
    (8, 64, 0, 64),
    (16, 100, 36, 64),
    (16, 100, 99, 1),
    (64, 192, 8, 160),
    (256, 90, 3, 87),
];

#[test]
fn expand_is_the_sum_of_products() {
    for kernels in kernels() {
        for (seed, (rank, len, first, cols)) in (0..).zip(PARTS) {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let (bytes, weights) = stored(dtype, seed, rank * len);
                let x = numbers(seed as u32, rank);
                let before = numbers(seed as u32 + 100, cols);
                let found = expand(kernels, &x, &bytes[1..], dtype, len, first, before.clone());
                for (n, (found, before)) in found.iter().zip(&before).enumerate() {
                    let product =
                        |j: usize| f64::from(x[j]) * f64::from(weights[j * len + first + n]);
                    let exact: f64 = f64::from(*before) + (0..rank).map(product).sum::<f64>();
                    let size: f64 =
                        f64::from(before.abs()) + (0..rank).map(|j| product(j).abs()).sum::<f64>();
                    // One rounding per product and addition, at most.
                    let bound = f64::from(f32::EPSILON) * (rank + 1) as f64 * size;
                    assert!(
                        (f64::from(*found) - exact).abs() <= bound,
                        "{rank} {len} {n}: {dtype}"
                    );
                }
            }
        }
    }
}

/// Work items have other columns on other machines and batches.
#[test]
fn outputs_do_not_depend_on_the_part_that_a_call_computes() {
    let (rank, len) = (24, 150);
    for kernels in kernels() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let (bytes, _) = stored(dtype, 5, rank * len);
            let (x, before) = (numbers(6, rank), numbers(7, len));
            let run = |first: usize, cols: usize| {
                let out = before[first..first + cols].to_vec();
                expand(kernels, &x, &bytes[1..], dtype, len, first, out)
            };
            let whole = run(0, len);
            for (first, cols) in [(0, 1), (0, 64), (1, 149), (77, 8), (149, 1), (13, 100)] {
                assert_eq!(run(first, cols), whole[first..first + cols], "{first} {cols} {dtype}");
            }
        }
    }
}

fn expand(
    kernels: &Kernels,
    x: &[f32],
    weights: &[u8],
    dtype: Dtype,
    len: usize,
    first: usize,
    mut out: Vec<f32>,
) -> Vec<f32> {
    kernels.expand(Expand { x, weights, dtype, len, first, out: &mut out });
    out
}
