//! RoPE of query and key rows in the order of GGUF.

use std::sync::Arc;

use trail_runtime::model::{RopePairing, Tensor};
use trail_runtime::reference::Reference;

use super::support::{cpu_logits, load};
use trail_test_support::gguf::adjacent_rows;

/// Both orders of the rows give the same bits on the CPU, and the same logits but for rounding in
/// the reference pass, whose sums have another order.
#[test]
fn the_order_of_rows_does_not_change_a_bit() {
    for name in ["llama2-bf16", "llama3.2-f16", "mistral-f32"] {
        let (golden, halves) = load(name);
        let mut adjacent = halves.clone();
        adjacent.config.rope_pairing = RopePairing::Adjacent;
        for layer in &mut adjacent.weights.layers {
            for tensor in [&mut layer.q, &mut layer.k] {
                let rows = Arc::new(adjacent_rows(tensor, halves.config.head_dim));
                let stored = Tensor::new(tensor.dtype, tensor.rows, tensor.cols, rows, 0);
                *tensor = stored.expect("as many bytes");
            }
        }
        let (halves, adjacent) = (Arc::new(halves), Arc::new(adjacent));
        let expected = cpu_logits(&halves, &golden.prompt);
        assert_eq!(cpu_logits(&adjacent, &golden.prompt), expected, "{name}");
        let expected = Reference::new(&halves).logits(&golden.prompt);
        let found = Reference::new(&adjacent).logits(&golden.prompt);
        let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-6 * (1.0 + y.abs());
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.iter().zip(expected).all(close), "{name}");
        }
    }
}
