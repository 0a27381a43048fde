//! Hybrids with gated delta nets, for the tests of all models, and their recurrent states.

use std::sync::Arc;

use super::{CONTEXT, EXACT, Request, backend, bits, config, decoded_alone};
use crate::backend::{Batch, StateCopy};
use crate::model::{
    Architecture, DeltaNetConfig, Dtype, MixtureConfig, Model, ModelConfig, RopeConfig,
};

/// Gated delta nets in the first and the last of three layers, of heads of `widths`.
fn hybrid(
    heads: (usize, usize),
    widths: (usize, usize),
    taps: usize,
    config: ModelConfig,
) -> ModelConfig {
    let delta_net = DeltaNetConfig {
        layers: vec![0, 2],
        key_heads: heads.0,
        value_heads: heads.1,
        key_dim: widths.0,
        value_dim: widths.1,
        taps,
    };
    ModelConfig {
        architecture: Architecture::Qwen35,
        delta_net: Some(delta_net),
        rotary_dim: Some(config.head_dim / 4 * 2),
        rope: RopeConfig { theta: 1e7, ..config.rope },
        windows: vec![None; 3],
        ..config
    }
}

/// Ragged widths, several value heads to a key head, each width of registers; experts.
pub(super) fn hybrids() -> Vec<Arc<Model>> {
    let mixture = MixtureConfig {
        num_experts: 7,
        experts_per_token: 3,
        expert_size: 64,
        shared_size: Some(32),
        normalized: true,
        dense_layers: Vec::new(),
    };
    let with_experts = ModelConfig {
        architecture: Architecture::Qwen3Next,
        mixture: Some(mixture),
        ..hybrid((2, 4), (16, 32), 4, config((4, 2), 16, 64))
    };
    let quantized = ModelConfig {
        intermediate_size: 160,
        ..hybrid((2, 2), (32, 48), 3, config((4, 2), 24, 96))
    };
    let all = [
        (hybrid((3, 6), (10, 7), 4, config((6, 2), 20, 72)), Dtype::Bf16),
        (hybrid((1, 1), (33, 67), 2, config((2, 1), 12, 50)), Dtype::F32),
        (quantized, Dtype::Q4_0),
        (with_experts, Dtype::Bf16),
    ];
    let models = all.into_iter().zip(21..);
    models
        .map(|((config, dtype), seed)| Model::random_of(config, dtype, seed).unwrap())
        .map(Arc::new)
        .collect()
}

/// A copy within a chunk is the state of a request that ended there: a request that goes on from it
/// has the same bits, and leaves it as it is.
#[test]
fn a_copy_of_the_state_is_that_of_its_tokens() {
    for model in hybrids() {
        let expected = decoded_alone(&mut backend(&model, EXACT, 1), &mut Request::new(0, 61));
        let mut backend = backend(&model, EXACT, 2);
        let request = Request::new(0, 61);
        let mut batch = Batch::default();
        batch.push(0, 0, &request.tokens[..41], &request.blocks, true);
        let copies = [(7, 5), (32, 6), (40, 7)];
        copies.into_iter().for_each(|(end, state)| batch.copy_state(StateCopy { end, state }));
        assert_eq!(bits(backend.forward(&batch, &[])), expected[40]);
        for _ in 0..2 {
            let mut batch = Batch::default();
            batch.push(0, 41, &request.tokens[41..], &request.blocks, true);
            batch.keep_state(Some(0), 3);
            assert_eq!(bits(backend.forward(&batch, &[])), expected[60]);
            for (end, before) in copies {
                let mut batch = Batch::default();
                batch.push(1, end, &request.tokens[end as usize..], &request.blocks, true);
                batch.keep_state(Some(before), 1);
                assert_eq!(bits(backend.forward(&batch, &[])), expected[60], "from {end}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "state 1 is written twice")]
fn two_segments_of_one_state_are_refused() {
    let model = &hybrids()[0];
    let mut batch = Batch::default();
    for index in 0..2 {
        let request = Request::new(index, CONTEXT / 2);
        batch.push(index, 0, &request.tokens, &request.blocks, true);
        batch.keep_state(None, 1);
    }
    backend(model, EXACT, 1).forward(&batch, &[]);
}
