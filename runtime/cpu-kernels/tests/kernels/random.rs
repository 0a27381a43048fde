//! Random weights.

use trail_cpu_kernels::{DEVIATION, Dtype, fill_random};
use trail_platform::Rng;

#[test]
fn weights_have_the_deviation_and_follow_the_seed() {
    for dtype in Dtype::ALL {
        let weights = |seed| {
            let mut bytes = vec![0; dtype.bytes_of(1 << 16)];
            fill_random(&mut bytes, dtype, &mut Rng::new(seed));
            bytes
        };
        let bytes = weights(7);
        let mut values = vec![0.0; 1 << 16];
        dtype.widen(&bytes, &mut values);
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let deviation = (values.iter().map(|v| v * v).sum::<f32>() / n).sqrt();
        assert!(mean.abs() < 1e-3, "{dtype}: mean {mean}");
        assert!((deviation / DEVIATION - 1.0).abs() < 0.02, "{dtype}: deviation {deviation}");
        assert_eq!(weights(7), bytes);
        assert_ne!(weights(8), bytes);
    }
}
