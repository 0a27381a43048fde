//! Cost of a prompt token: one chunk of a prompt, timed before the first step.

use super::{Executor, Filled, StepPhase};
use crate::backend::BLOCK_TOKENS;
use crate::cuda::error::CudaError;
use std::time::Instant;

/// Most tokens of the chunk: enough to fill the chip, and soon done.
const MOST_TOKENS: usize = 2048;
/// Repetitions, of which the fastest counts: the first loads code.
const RUNS: usize = 3;

impl Executor {
    /// Seconds a token of a prompt takes, in a chunk as large as a step may be. To be called before
    /// the first step; the keys and values that it writes are never read.
    pub(in crate::cuda) fn measure_token_s(&mut self) -> Result<f64, CudaError> {
        let blocks = self.kv.blocks() as usize;
        let tokens = MOST_TOKENS.min(self.limits.rows).min(self.limits.context);
        let tokens = tokens.min(blocks * BLOCK_TOKENS);
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let shape = self.filler.fill_prompt(tokens, &self.plans, &mut self.metadata);
            let begin = Instant::now();
            self.launch(&Filled { shape }, StepPhase::Whole)?;
            self.compute.synchronize("timing a prompt")?;
            best = best.min(begin.elapsed().as_secs_f64() / tokens as f64);
        }
        Ok(best.max(f64::MIN_POSITIVE))
    }
}
