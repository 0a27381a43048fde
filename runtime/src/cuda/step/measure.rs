//! Cost of a prompt token: one chunk of a prompt, timed at start.

use super::{Executor, StepPhase};
use crate::backend::{BLOCK_TOKENS, Batch, SamplingParams, Step};
use crate::cuda::CudaError;
use std::time::Instant;

/// Most tokens of the chunk: enough to fill the chip, and soon done.
const MOST_TOKENS: usize = 2048;
/// Runs, of which the quickest counts: the first loads code.
const RUNS: u64 = 3;
/// Numbers that no real step reaches.
const FIRST_STEP: u64 = u64::MAX - RUNS;

impl Executor {
    /// Seconds a token of a prompt takes, in a chunk as large as a step may be. The keys and values
    /// that it writes are never read.
    pub(in crate::cuda) fn measure_token_s(&mut self) -> Result<f64, CudaError> {
        let blocks = self.kv.blocks() as usize;
        let tokens = MOST_TOKENS.min(self.limits.rows).min(self.limits.context);
        let tokens = tokens.min(blocks * BLOCK_TOKENS);
        let table: Vec<u32> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).collect();
        let mut batch = Batch::default();
        batch.push(0, 0, &vec![0; tokens], &table, false);
        let sampling = SamplingParams::default();
        let mut best = f64::INFINITY;
        for number in FIRST_STEP..FIRST_STEP + RUNS {
            let filled =
                self.fill(&Step { number, batch: &batch, sampling: &sampling, tap: None })?;
            let begin = Instant::now();
            self.launch(&filled, StepPhase::Whole)?;
            self.compute.synchronize("timing a prompt")?;
            best = best.min(begin.elapsed().as_secs_f64() / tokens as f64);
        }
        Ok(best.max(f64::MIN_POSITIVE))
    }
}
