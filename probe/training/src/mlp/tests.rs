//! The MLP against finite differences.

use trail_platform::Rng;

use trail_probe::reference;

use super::*;

const SHAPE: MlpShape = MlpShape { d: 5, hidden: 7, layers: 1, outputs: 3 };

fn inputs(rows: usize) -> Array2<f32> {
    let mut rng = Rng::new(3);
    Array2::from_shape_fn((rows, SHAPE.d), |_| rng.signed())
}

#[test]
fn the_gradient_is_that_of_finite_differences() {
    let (inputs, bins, weights) = (inputs(4), [0, 2, 1, 2], [1.0, 2.0, 0.5, 1.0]);
    // The third is of bin 1 or 2, the last of bin 2, which is the same as not censored.
    let censored = [false, false, true, true];
    let rows = Labelled {
        inputs: inputs.view(),
        bins: &bins,
        censored: &censored,
        weights: &weights,
        keep: None,
    };
    let mut mlp = Mlp::new(SHAPE, 1);
    mlp.classify(rows);
    let gradient = mlp.gradient.clone();
    let loss = |mlp: &Mlp| -> f64 {
        let log_p = mlp.log_probabilities(inputs.view());
        let of = |(i, &bin): (usize, &usize)| {
            let end = if censored[i] { 3 } else { bin + 1 };
            let mass: f64 = (bin..end).map(|bin| f64::from(log_p[[i, bin]]).exp()).sum();
            -mass.ln() * f64::from(weights[i]) / 4.0
        };
        bins.iter().enumerate().map(of).sum()
    };
    let step = 1e-2;
    for (at, &expected) in gradient.iter().enumerate() {
        let mut at_both = [step, -step].map(|step| {
            let mut moved = mlp.clone();
            moved.parameters[at] += step;
            loss(&moved)
        });
        at_both[0] -= at_both[1];
        let slope = at_both[0] / f64::from(2.0 * step);
        // The second derivatives are of the order of 1; a kink of ReLU adds as much.
        assert!((slope - f64::from(expected)).abs() < 2e-3, "{at}: {slope}");
    }
}

#[test]
fn a_probe_starts_from_the_weights_of_its_seed() {
    let of = Weights::random(5, 7, 3, 6);
    let flat = [of.hidden_weight, of.hidden_bias, of.output_weight, of.output_bias].concat();
    assert_eq!(Mlp::new(SHAPE, 6).parameters, flat);
}

#[test]
fn the_gradient_of_any_depth_is_that_of_finite_differences() {
    for layers in [0, 2, 3] {
        let shape = MlpShape { layers, outputs: 1, ..SHAPE };
        let (inputs, mut mlp) = (inputs(6), Mlp::new(shape, 3));
        // A linear map starts at 0, where all slopes of this loss would be 0.
        mlp.parameters.iter_mut().for_each(|w| *w += 0.1);
        let loss = |outputs: &Array2<f32>| outputs.iter().map(|y| f64::from(y * y)).sum::<f64>();
        let slopes = |outputs: &mut Array2<f32>| {
            let sum = loss(outputs);
            outputs.mapv_inplace(|y| 2.0 * y);
            sum
        };
        let before = mlp.clone();
        mlp.step_on(inputs.view(), slopes, 0.0, 0.0);
        for (at, &expected) in mlp.gradient.iter().enumerate() {
            let moved = [1e-2, -1e-2].map(|step| {
                let mut moved = before.clone();
                moved.parameters[at] += step;
                loss(&moved.outputs(inputs.view()))
            });
            let slope = (moved[0] - moved[1]) / 2e-2;
            // As above; the sum is over 6 rows.
            assert!((slope - f64::from(expected)).abs() < 2e-2, "{layers} {at}: {slope}");
        }
    }
}

#[test]
fn a_standardized_input_is_folded_into_the_weights() {
    let mlp = Mlp::new(SHAPE, 2);
    let (mean, scale) = ([1.0, -2.0, 0.5, 3.0, 0.0], [2.0, 0.5, 1.0, 0.25, 4.0]);
    let raw = inputs(6);
    let mut standardized = raw.clone();
    for mut row in standardized.rows_mut() {
        for (i, x) in row.iter_mut().enumerate() {
            *x = (*x - mean[i]) * scale[i];
        }
    }
    let weights = mlp.folded(&mean, &scale, SHAPE.d, Inputs::default(), HeadKind::Bins);
    for (row, expected) in
        raw.rows().into_iter().zip(mlp.log_probabilities(standardized.view()).rows())
    {
        let activation = row.as_slice().expect("a row");
        let row = reference::Row { activation, generated: 0, prompt: None };
        let p = reference::forward(&weights, row);
        for (p, log_p) in p.probabilities.iter().zip(expected) {
            assert!((p - f64::from(*log_p).exp()).abs() < 1e-5);
        }
    }
}

#[test]
fn it_learns_what_can_be_learned() {
    let inputs = inputs(64);
    let bins: Vec<usize> = inputs.rows().into_iter().map(|row| usize::from(row[0] > 0.0)).collect();
    let (weights, censored) = (&[1.0; 64], &[false; 64]);
    let rows = Labelled { inputs: inputs.view(), bins: &bins, censored, weights, keep: None };
    let mut mlp = Mlp::new(SHAPE, 4);
    let first = mlp.step(rows, 0.01, 0.01);
    let last = (0..300).map(|_| mlp.step(rows, 0.01, 0.01)).last().expect("a step");
    assert!(first > 0.8 && last < 0.1, "{first} {last}");
}
