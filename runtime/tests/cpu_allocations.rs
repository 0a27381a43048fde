//! A forward pass does not allocate, whatever its batch.

use std::sync::Arc;

use trail_counting_allocator::of_process;
use trail_runtime::backend::{BLOCK_TOKENS, Batch, StateCopy};
use trail_runtime::cpu::{Compute, CpuForward, CpuOptions, Isa};
use trail_runtime::model::{
    Adapter, Dtype, MixtureConfig, Model, ModelConfig, Projection, QkvBias,
};

#[test]
fn forward_allocates_nothing() {
    let llama = Model::random("tiny", Dtype::Bf16, 3).unwrap();
    let small = ModelConfig {
        hidden_size: 64,
        intermediate_size: 96,
        num_layers: 3,
        head_dim: 16,
        vocab_size: 256,
        windows: vec![None, Some(40), Some(9)],
        layers_without_rope: vec![2],
        ..ModelConfig::named("gemma3-1b").unwrap()
    };
    let mut family = Model::random_of(small, Dtype::Bf16, 4).unwrap();
    for layer in &mut family.weights.layers {
        let bias = |rows| vec![0.1; rows];
        let (q, kv) = (layer.q.rows, layer.k.rows);
        layer.qkv_bias = Some(QkvBias { q: bias(q), k: bias(kv), v: bias(kv) });
    }
    let blocks = ModelConfig {
        hidden_size: 256,
        intermediate_size: 256,
        head_dim: 64,
        ..ModelConfig::named("tiny").unwrap()
    };
    let quantized =
        [Dtype::Q4_1, Dtype::Q6K].map(|dtype| Model::random_of(blocks.clone(), dtype, 3).unwrap());
    let hybrid = Model::random("tiny-hybrid", Dtype::Bf16, 5).unwrap();
    for model in [llama, family, hybrid].into_iter().chain(quantized).chain(mixtures()) {
        let model = Arc::new(model);
        for compute in [Compute::Exact, Compute::Fast] {
            check(model.clone(), compute);
        }
    }
}

/// Experts with all that families have: a shared one, and biases, sinks and another activation.
fn mixtures() -> [Model; 2] {
    let small = |shape: &str, shared_size| {
        let config = ModelConfig::named(shape).unwrap();
        let mixture = config.mixture.clone().unwrap();
        ModelConfig {
            hidden_size: 64,
            intermediate_size: 96,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 16,
            vocab_size: 256,
            windows: vec![None, Some(40)],
            mixture: Some(MixtureConfig {
                num_experts: 16,
                expert_size: 32,
                shared_size,
                dense_layers: if shared_size.is_some() { vec![1] } else { Vec::new() },
                ..mixture
            }),
            ..config
        }
    };
    [("qwen3-30b-a3b", Some(96), Dtype::Bf16), ("gpt-oss-20b", None, Dtype::MxFp4)]
        .map(|(shape, shared, dtype)| Model::random_of(small(shape, shared), dtype, 6).unwrap())
}

fn check(model: Arc<Model>, compute: Compute) {
    let (rows, segments, blocks_each) = (100, 4, 7);
    let options = CpuOptions {
        threads: 2,
        pin: false,
        isa: Isa::Auto,
        compute,
        repack: compute == Compute::Fast,
        max_rows: rows,
        max_segments: segments,
        kv_dtype: Dtype::F32,
        num_blocks: segments * blocks_each,
        max_context: blocks_each * BLOCK_TOKENS,
    };
    let adapters = [(3, Dtype::F32), (256, Dtype::Bf16)].map(|(rank, dtype)| {
        Arc::new(Adapter::random(&model.config, &Projection::ALL, rank, dtype, 1))
    });
    // A hybrid has none; its states are copied instead.
    let is_hybrid = model.config.delta_net.is_some();
    let mut backend = CpuForward::new(model, options).unwrap();
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let blocks: Vec<u32> = (0..(segments * blocks_each) as u32).collect();
    let tables: Vec<&[u32]> = blocks.chunks(blocks_each).collect();
    let mut prefill = Batch::default();
    prefill.push(0, 0, &tokens, tables[0], true);
    let mut mixed = Batch::default();
    mixed.push(0, 100, &[7], tables[0], true);
    mixed.push(1, 0, &tokens[..97], tables[1], false);
    mixed.push(2, 0, &[9], tables[2], true);
    mixed.push(3, 0, &[9], tables[3], true);
    let mut adapted = Batch::default();
    let adapt = |batch: &mut Batch, at: usize| match is_hybrid {
        false => batch.adapt(&adapters[at]),
        true => batch.copy_state(StateCopy { end: 1, state: (5 + batch.segments.len()) as u32 }),
    };
    adapted.push(0, 100, &[7], tables[0], true);
    adapted.push(1, 0, &tokens[..60], tables[1], false);
    adapt(&mut adapted, 0);
    adapted.push(2, 0, &tokens[..30], tables[2], true);
    adapt(&mut adapted, 1);
    adapted.push(3, 0, &[9], tables[3], true);
    adapt(&mut adapted, 0);
    let mut passes = || {
        let before = of_process();
        for _ in 0..20 {
            backend.forward(&prefill, &[]);
            backend.forward(&mixed, &[]);
            backend.forward(&adapted, &[]);
        }
        of_process() - before
    };
    // Starting threads allocates, once, and may take any time on a busy machine.
    let allocations: Vec<u64> = (0..8).map(|_| passes()).collect();
    assert!(allocations.contains(&0), "{allocations:?}");
    assert_eq!(passes(), 0, "after {allocations:?}");
}
