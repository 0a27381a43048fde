//! Random adapters, for benchmarks and tests.

use std::sync::Arc;

use trail_cpu_kernels::{DEVIATION, fill_random};
use trail_platform::Rng;

use super::{Adapter, LowRank, Projection};
use crate::model::{Dtype, ModelConfig, Tensor};

impl Adapter {
    /// An adapter of `projections` for models of `config`, with weights of a float type, determined
    /// by `seed`. What it adds is about half as large as what the projections of a
    /// [random model](crate::model::Model::random_of) compute.
    pub fn random(
        config: &ModelConfig,
        projections: &[Projection],
        rank: usize,
        dtype: Dtype,
        seed: u64,
    ) -> Adapter {
        let mut rng = Rng::new(seed);
        let mut matrix = |rows: usize, cols: usize| {
            let mut bytes = vec![0; dtype.bytes_of(rows * cols)];
            fill_random(&mut bytes, dtype, &mut rng);
            Tensor::new(dtype, rows, cols, Arc::new(bytes), 0).expect("the bytes of a matrix")
        };
        let scale = 0.5 / (DEVIATION * (rank as f32).sqrt());
        let mut factors = |layer: usize, projection: Projection| {
            let (outputs, inputs) = projection.shape(config);
            let is_adapted = projections.contains(&projection) && projection.is_in(layer, config);
            is_adapted.then(|| LowRank { a: matrix(rank, inputs), b: matrix(rank, outputs), scale })
        };
        let of_layer = |layer| Projection::ALL.map(|projection| factors(layer, projection));
        let layers = (0..config.num_layers).map(of_layer).collect();
        Adapter::new(config, layers)
    }
}
