//! A forward pass does not allocate, whatever its batch.

use std::sync::Arc;

use trail_counting_allocator::of_process;
use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{CpuForward, CpuOptions, Isa};
use trail_runtime::model::{Dtype, Model, ModelConfig};

#[test]
fn forward_allocates_nothing() {
    let (rows, segments, blocks_each) = (100, 4, 7);
    let options = CpuOptions {
        threads: 2,
        isa: Isa::Auto,
        max_rows: rows,
        max_segments: segments,
        num_blocks: segments * blocks_each,
        max_context: blocks_each * BLOCK_TOKENS,
    };
    let config = ModelConfig {
        hidden_size: 256,
        intermediate_size: 256,
        head_dim: 64,
        ..ModelConfig::named("tiny").unwrap()
    };
    let backend = |dtype| {
        let model = Arc::new(Model::random_of(config.clone(), dtype, 3).unwrap());
        CpuForward::new(model, options).unwrap()
    };
    let mut backends = [Dtype::Bf16, Dtype::Q4_1, Dtype::Q6K].map(backend);
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
    // Starting threads allocates, and may not be complete yet.
    for backend in &mut backends {
        backend.forward(&prefill, None);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let before = of_process();
    for backend in &mut backends {
        for _ in 0..20 {
            backend.forward(&prefill, None);
            backend.forward(&mixed, None);
        }
    }
    assert_eq!(of_process() - before, 0);
}
