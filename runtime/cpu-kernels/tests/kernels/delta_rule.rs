//! The gated delta rule against plain loops in f64.

use trail_cpu_kernels::{DeltaRule, Kernels};

use super::{kernels, numbers};

/// Widths of a key and of a value: blocks of columns, and columns beside them.
const WIDTHS: [(usize, usize); 6] = [(1, 1), (3, 7), (16, 32), (33, 67), (128, 128), (64, 160)];

/// The changed matrix and the output of two tokens one after the other.
fn run(kernels: &Kernels, (keys, values): (usize, usize)) -> (Vec<f32>, Vec<f32>) {
    let (mut matrix, mut out) = (numbers(1, keys * values), vec![f32::NAN; values]);
    for token in 0..2 {
        kernels.delta_rule(DeltaRule {
            matrix: &mut matrix,
            key: &numbers(10 + token, keys),
            query: &numbers(20 + token, keys),
            value: &numbers(30 + token, values),
            decay: 0.9,
            weight: 0.4,
            out: &mut out,
        });
    }
    (matrix, out)
}

/// A value, and the sum of the magnitudes of what it is added from.
type Sized64 = (f64, f64);

/// The same in f64.
fn exact((keys, values): (usize, usize)) -> (Vec<Sized64>, Vec<Sized64>) {
    let wide = |seed, len| numbers(seed, len).into_iter().map(f64::from).collect::<Vec<f64>>();
    let mut matrix: Vec<_> = wide(1, keys * values).into_iter().map(|x| (x, x.abs())).collect();
    let (decay, weight) = (f64::from(0.9_f32), f64::from(0.4_f32));
    let mut out = vec![(0.0, 0.0); values];
    for token in 0..2 {
        let (key, query) = (wide(10 + token, keys), wide(20 + token, keys));
        let value = wide(30 + token, values);
        matrix.iter_mut().for_each(|(x, size)| (*x, *size) = (*x * decay, *size * decay));
        for column in 0..values {
            let product = |matrix: &[Sized64], by: &[f64]| {
                let terms = (0..keys).map(|row| (matrix[row * values + column], by[row]));
                terms.fold((0.0, 0.0), |(sum, size), ((x, of_x), by)| {
                    (sum + x * by, size + of_x * by.abs())
                })
            };
            let (before, size) = product(&matrix, &key);
            let change = weight * (value[column] - before);
            let size = weight * (value[column].abs() + size);
            for row in 0..keys {
                let (x, of_x) = &mut matrix[row * values + column];
                *x += key[row] * change;
                *of_x += key[row].abs() * size;
            }
            out[column] = product(&matrix, &query);
        }
    }
    (matrix, out)
}

#[test]
fn the_delta_rule_is_that_of_plain_loops_on_every_instruction_set() {
    for widths in WIDTHS {
        let portable = run(kernels().last().expect("the portable ones"), widths);
        let (matrix, out) = exact(widths);
        // A value has been through a sum over the keys for each token, and a few roundings more;
        // an output is one sum further. Each is off by 2^-24 of the magnitudes at most.
        let roundings = 2.0 * (widths.0 + 6) as f64;
        let limits = [(&portable.0, matrix, roundings), (&portable.1, out, 1.5 * roundings)];
        for (found, exact, roundings) in limits {
            for (found, (exact, size)) in found.iter().zip(exact) {
                let limit = roundings * f64::from(f32::EPSILON) / 2.0 * size;
                assert!((f64::from(*found) - exact).abs() <= limit, "{widths:?}");
            }
        }
        for kernels in kernels() {
            assert_eq!(run(kernels, widths), portable, "{:?} {widths:?}", kernels.isa);
        }
    }
}
