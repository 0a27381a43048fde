//! The draft model of the CPU backend: a forward pass on the threads of the backend's own, over a
//! KV pool with blocks of the same ids.

use std::time::{Duration, Instant};

use crate::backend::{BLOCK_TOKENS, Batch, DraftModel, Sampled, SamplingInputs, SamplingParams};

use super::{CpuBackend, CpuForward, Samplers};

/// Tokens of the prompt that is computed to measure its time.
const MEASURED_TOKENS: usize = 32;
/// Measurements of a time. The shortest counts: the first pass reads the weights from the file, and
/// other programs may take the cores.
const MEASUREMENTS: usize = 4;

/// Forward pass and samplers of a draft model, and its times at the start.
pub(super) struct CpuDraft {
    forward: CpuForward,
    samplers: Samplers,
    token_time: Duration,
    row_time: Duration,
}

impl CpuDraft {
    pub(super) fn new(forward: CpuForward) -> CpuDraft {
        let samplers = Samplers::new(&forward);
        CpuDraft { forward, samplers, token_time: Duration::ZERO, row_time: Duration::ZERO }
    }

    /// A batch of the first `tokens` positions of a request.
    fn prompt(&self, tokens: usize, logits: bool) -> Batch {
        let options = self.forward.options();
        let blocks = tokens.div_ceil(BLOCK_TOKENS).min(options.num_blocks);
        let max = (blocks * BLOCK_TOKENS).min(options.max_rows).min(options.max_context);
        let blocks: Vec<u32> = (0..blocks as u32).collect();
        let mut batch = Batch::default();
        batch.push(0, 0, &vec![0; tokens.min(max)], &blocks, logits);
        batch
    }
}

impl CpuBackend {
    /// Measures the times of the draft model.
    pub(super) fn measure_draft(&mut self) {
        let Some(draft) = &self.draft else { return };
        let (prompt, row) = (draft.prompt(MEASURED_TOKENS, false), draft.prompt(1, true));
        let mut sampled = Vec::new();
        let mut time = |batch: &Batch| {
            let passes = [(); MEASUREMENTS].map(|()| {
                let begin = Instant::now();
                self.step(batch, &SamplingParams::default(), &mut sampled);
                begin.elapsed()
            });
            passes.into_iter().min().unwrap_or_default()
        };
        let (prompt_time, row_time) = (time(&prompt), time(&row));
        let draft = self.draft.as_mut().expect("it was measured");
        draft.token_time = prompt_time / prompt.rows() as u32;
        draft.row_time = row_time;
        // Another thread will compute.
        self.forward.pool().release_caller();
    }
}

/// Of a backend [with a draft model](CpuBackend::with_draft).
impl DraftModel for CpuBackend {
    fn step(&mut self, batch: &Batch, sampling: &dyn SamplingInputs, sampled: &mut Vec<Sampled>) {
        let CpuBackend { forward: own, draft, .. } = self;
        let CpuDraft { forward, samplers, .. } = draft.as_mut().expect("a draft model");
        forward.exchange_threads(own.pool_mut());
        forward.forward(batch, &[]);
        samplers.sample(forward, batch, sampling, sampled);
        forward.exchange_threads(own.pool_mut());
    }

    fn token_time(&self) -> Duration {
        self.draft.as_ref().map_or(Duration::ZERO, |draft| draft.token_time)
    }

    fn row_time(&self) -> Duration {
        self.draft.as_ref().map_or(Duration::ZERO, |draft| draft.row_time)
    }
}
