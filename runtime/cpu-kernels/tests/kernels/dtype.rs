//! Rounding of values as they are stored.

use trail_cpu_kernels::Dtype;

#[test]
fn q8_0_is_within_half_a_step_of_the_largest_magnitude() {
    let mut values = [0.0f32; 96];
    values[..64].iter_mut().enumerate().for_each(|(i, x)| *x = (i as f32 * 0.37).sin() * 5.0);
    let (mut bytes, mut found) = ([0; 102], [1.0f32; 96]);
    Dtype::Q8_0.narrow(&values, &mut bytes);
    Dtype::Q8_0.widen(&bytes, &mut found);
    for (block, found) in values.chunks(32).zip(found.chunks(32)) {
        let largest = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        // Half a step, and at 127 steps the rounding of the scale to 11 bits.
        let bound = largest / 127.0 * (0.5 + 127.0 / 2048.0);
        assert!(block.iter().zip(found).all(|(x, y)| (x - y).abs() <= bound), "{block:?}");
    }
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        values[40] = value;
        Dtype::Q8_0.narrow(&values, &mut bytes);
        Dtype::Q8_0.widen(&bytes, &mut found);
        assert!(found[32..64].iter().all(|x| x.is_nan()), "{value}");
        assert!(found[..32].iter().all(|x| x.is_finite()), "the block before {value}");
    }
}
