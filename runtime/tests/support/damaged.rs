//! A model with one damaged weight row: a fault of the requests that use it, and of no other.

use std::sync::Arc;

use trail_runtime::model::{Dtype, Model, Tensor};

/// `model` with NaN as the embedding of `token`. The output projection keeps the sound weights.
pub fn with_nan_embedding(mut model: Model, token: u32) -> Model {
    model.config.tie_word_embeddings = false;
    let embed = &mut model.weights.embed;
    assert_eq!(embed.dtype, Dtype::Bf16);
    let mut bytes = embed.bytes().to_vec();
    let stride = embed.row_len();
    bytes[token as usize * stride..][..stride].fill(0xff);
    let damaged = Tensor::new(embed.dtype, embed.rows, embed.cols, Arc::new(bytes), 0);
    *embed = damaged.expect("as many bytes");
    model
}
