//! Long contexts have the same bits in every chunk, among other requests and on any number of
//! threads, whether the threads share the partitions of a context or not.

use std::sync::Arc;

use crate::backend::{BLOCK_TOKENS, Batch};
use crate::cpu::{Compute, CpuForward, CpuOptions, Isa};
use crate::model::{Activation, Architecture, Dtype, MixtureConfig, Model, ModelConfig};
use crate::reference::Reference;

/// Longest context: four partitions.
const CONTEXT: usize = 1700;
const REQUESTS: usize = 3;

/// Layers with and without a sliding window, the shorter within a partition.
fn model() -> Arc<Model> {
    let config = ModelConfig {
        hidden_size: 32,
        intermediate_size: 48,
        num_layers: 3,
        num_heads: 6,
        num_kv_heads: 3,
        head_dim: 10,
        vocab_size: 53,
        windows: vec![None, Some(700), Some(90)],
        tie_word_embeddings: false,
        ..ModelConfig::named("tiny").expect("a known shape")
    };
    Arc::new(Model::random_of(config, Dtype::F32, 9).expect("a model"))
}

fn forward(model: &Arc<Model>, threads: usize, kv_dtype: Dtype) -> CpuForward {
    let options = CpuOptions {
        threads,
        pin: false,
        isa: Isa::Auto,
        compute: Compute::Exact,
        repack: false,
        max_rows: CONTEXT,
        max_segments: REQUESTS,
        kv_dtype,
        num_blocks: REQUESTS * CONTEXT.div_ceil(BLOCK_TOKENS),
        max_context: CONTEXT,
    };
    CpuForward::new(model.clone(), options).expect("a backend")
}

/// Feeds tokens `range` of each of `requests` in one batch. Returns the bits of the last logits.
fn feed(forward: &mut CpuForward, requests: &[usize], range: std::ops::Range<usize>) -> Vec<u32> {
    let mut batch = Batch::default();
    for &request in requests {
        let each = CONTEXT.div_ceil(BLOCK_TOKENS) as u32;
        let blocks: Vec<u32> = (0..each).map(|i| request as u32 * each + i).collect();
        let tokens: Vec<u32> = range.clone().map(|i| ((i * i + 7 * request) % 53) as u32).collect();
        batch.push(request as u32, range.start as u32, &tokens, &blocks, true);
    }
    forward.forward(&batch, &[]).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn bits_of_long_contexts_do_not_depend_on_threads_chunks_or_other_requests() {
    let model = model();
    for kv_dtype in [Dtype::F32, Dtype::F16] {
        for end in [513, 1030, CONTEXT] {
            let mut alone = forward(&model, 1, kv_dtype);
            let expected: Vec<_> =
                (0..REQUESTS).map(|request| feed(&mut alone, &[request], 0..end)).collect();
            let mut shared = forward(&model, 3, kv_dtype);
            for (request, expected) in expected.iter().enumerate() {
                feed(&mut shared, &[request], 0..end - 2);
                feed(&mut shared, &[request], end - 2..end - 1);
                assert_eq!(&feed(&mut shared, &[request], end - 1..end), expected, "{end}");
            }
            // Of three KV heads: two rows are few enough for three threads to be split.
            for requests in [&[0, 1][..], &[0, 1, 2]] {
                let together = feed(&mut shared, requests, end - 1..end);
                assert_eq!(together, expected[..requests.len()].concat(), "{end}");
            }
        }
    }
}

/// A decode step of two partitions is split on several threads, a prefill chunk is not.
#[test]
fn decode_rows_of_long_contexts_are_split() {
    let model = model();
    let mut shared = forward(&model, 3, Dtype::F32);
    feed(&mut shared, &[0], 0..600);
    assert!(shared.buffers.splits.is_empty());
    // The last layer's window is within the last partition; one layer is enough to see.
    feed(&mut shared, &[0], 600..601);
    assert!(shared.buffers.partials.iter().any(|&value| value != 0.0));
    let mut alone = forward(&model, 1, Dtype::F32);
    feed(&mut alone, &[0], 0..600);
    feed(&mut alone, &[0], 600..601);
    assert!(alone.buffers.partials.is_empty());
}

/// The sink of a head is in its sum once, though partitions of a context are computed apart.
#[test]
fn attention_sinks_count_once_over_partitions() {
    let config = ModelConfig {
        architecture: Architecture::GptOss,
        activation: Activation::SwigluOai,
        mixture: Some(MixtureConfig {
            num_experts: 2,
            experts_per_token: 1,
            expert_size: 16,
            shared_size: None,
            normalized: true,
            dense_layers: Vec::new(),
        }),
        windows: vec![None; 3],
        ..model().config.clone()
    };
    let heads = config.num_heads;
    let mut model = Model::random_of(config, Dtype::F32, 9).expect("a model");
    // As much as a hundred keys, so that twice would show.
    model.weights.layers.iter_mut().for_each(|layer| layer.sinks = Some(vec![5.0; heads]));
    let model = Arc::new(model);
    let tokens: Vec<u32> = (0..601).map(|i| ((i * i) % 53) as u32).collect();
    let expected = Reference::new(&model).logits(&tokens).pop().expect("a position");
    let scale = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    for threads in [1, 3] {
        let mut forward = forward(&model, threads, Dtype::F32);
        feed(&mut forward, &[0], 0..600);
        let found = feed(&mut forward, &[0], 600..601);
        for (&found, expected) in found.iter().zip(&expected) {
            let error = (f32::from_bits(found) - expected).abs() / scale;
            assert!(error < 3e-5, "{threads} threads: off by {error:e}");
        }
    }
}
