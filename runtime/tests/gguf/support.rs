//! Models of the golden runs as GGUF has them, and the logits of a backend.

use std::path::Path;
use std::sync::Arc;

use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{CpuForward, CpuOptions, Isa};
use trail_runtime::model::{Model, Tensor};

use crate::golden::Golden;

/// A golden run and its model.
pub(crate) fn load(name: &str) -> (Golden, Model) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let golden = Golden::load(&folder);
    let model = Model::load(&folder).expect(name);
    (golden, model)
}

/// The rows of a query or key projection with each head in the order of GGUF: row 2i + p of the
/// result is row i + p * head_dim / 2.
pub(crate) fn adjacent_rows(tensor: &Tensor, head_dim: usize) -> Vec<u8> {
    let half = head_dim / 2;
    let order = |head: usize| (0..half).flat_map(move |i| [head + i, head + i + half]);
    let rows = (0..tensor.rows).step_by(head_dim).flat_map(order);
    rows.flat_map(|row| tensor.row_bytes(row).to_vec()).collect()
}

/// Logits of the CPU backend after the last of `tokens`: `[vocab]`.
pub(crate) fn cpu_logits(model: &Arc<Model>, tokens: &[u32]) -> Vec<f32> {
    let num_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
    let options = CpuOptions {
        threads: 2,
        isa: Isa::Auto,
        max_rows: tokens.len(),
        max_segments: 1,
        num_blocks,
        max_context: num_blocks * BLOCK_TOKENS,
    };
    let mut forward = CpuForward::new(model.clone(), options).expect("a backend");
    let mut batch = Batch::default();
    batch.push(0, 0, tokens, &(0..num_blocks as u32).collect::<Vec<_>>(), true);
    forward.forward(&batch, None).to_vec()
}
