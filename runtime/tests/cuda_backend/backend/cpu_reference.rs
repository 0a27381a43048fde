//! Expected answers of a request: the CPU backend over the same tokens, one at a time.

use std::sync::{Arc, Mutex};
use trail_runtime::backend::{BLOCK_TOKENS, Batch, HiddenSink, TapPlan};
use trail_runtime::cpu::{Compute, CpuForward, CpuOptions, Isa, Tap};
use trail_runtime::model::{Dtype, Model};

/// The CPU's values of a sequence, by position.
pub(crate) struct Expected {
    /// `[position][vocab]`
    pub(crate) logits: Vec<Vec<f32>>,
    /// The residual stream behind the tapped layer `[position][d]`.
    pub(crate) hidden: Vec<Vec<f32>>,
}

#[derive(Default)]
struct Sink(Mutex<Vec<Vec<f32>>>);

impl HiddenSink for Sink {
    fn publish_hidden(
        &self,
        _step: u64,
        _at: usize,
        _plan: &TapPlan,
        _batch: &Batch,
        hidden: &[f32],
    ) {
        self.0.lock().unwrap().push(hidden.to_vec());
    }

    fn assist(&self) -> bool {
        false
    }
}

/// Tokens of the longest sequence of a test.
pub(crate) const LONGEST: usize = 960;

/// A CPU backend for sequences.
pub(crate) fn cpu(model: &Arc<Model>) -> CpuForward {
    let options = CpuOptions {
        threads: 1,
        pin: false,
        isa: Isa::Auto,
        compute: Compute::Exact,
        repack: false,
        max_rows: 1,
        max_segments: 1,
        kv_dtype: Dtype::F32,
        num_blocks: LONGEST.div_ceil(BLOCK_TOKENS),
        max_context: LONGEST,
    };
    CpuForward::new(model.clone(), options).unwrap()
}

/// Feeds `tokens` to `cpu`, which forgets what it had.
pub(crate) fn run_cpu(cpu: &mut CpuForward, tokens: &[u32], layer: usize) -> Expected {
    let sink = Sink::default();
    let blocks: Vec<u32> = (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).collect();
    let mut logits = Vec::new();
    let mut batch = Batch::default();
    for (position, token) in tokens.iter().enumerate() {
        batch.clear();
        batch.push(0, position as u32, &[*token], &blocks, true);
        let tap =
            Tap { layer, at: 0, step: position as u64, plan: &TapPlan::default(), receiver: &sink };
        logits.push(cpu.forward(&batch, &[tap]).to_vec());
    }
    Expected { logits, hidden: sink.0.into_inner().unwrap() }
}

/// The most likely token, and by how much.
pub(crate) fn best(logits: &[f32]) -> (u32, f64) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    (order[0] as u32, f64::from(logits[order[0]] - logits[order[1]]))
}
