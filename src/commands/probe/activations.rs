//! Activations of answers: each is fed through the model once more, prompt and answer in large
//! steps, with a tap after every layer that is asked for.
//!
//! On the CPU a row's activation does not depend on the batch or on the chunks that it is computed
//! in, bit for bit, so these are those that the engine's tap saw when the answer was generated.
//! Only after an answer is complete is it known which of its rows are wanted.

use std::sync::{Arc, Mutex, PoisonError};

use trail_cli::{EngineArgs, Error, Setup};
use trail_platform::Rng;
use trail_probe::Bins;
use trail_runtime::backend::{BLOCK_TOKENS, Batch, PromptRun, TapPlan, TapRow, TapStage};
use trail_runtime::cpu::{CpuForward, CpuOptions, Tap};
use trail_runtime::model::{Adapter, Dtype};
use trail_training::{Answer, Collected};

/// Rows of a step.
const STEP_ROWS: usize = 256;

/// Computes the activations of answers.
pub struct Activations {
    forward: CpuForward,
    layers: Vec<usize>,
    /// One for each layer.
    stages: Vec<Mutex<TapStage>>,
    blocks: Vec<u32>,
    adapter: Option<Arc<Adapter>>,
}

impl Activations {
    /// A pass over the model of `setup` for sequences of up to `longest` tokens.
    pub fn new(
        setup: &Setup,
        engine: &EngineArgs,
        layers: &[usize],
        longest: usize,
    ) -> Result<Activations, Error> {
        let num_blocks = longest.div_ceil(BLOCK_TOKENS);
        let options = CpuOptions {
            threads: engine.threads(),
            pin: engine.cpu().cpu_strict,
            isa: engine.cpu().isa,
            compute: engine.cpu().compute,
            repack: engine.cpu().repack,
            max_rows: STEP_ROWS.min(longest),
            max_segments: 1,
            kv_dtype: engine.cpu().kv_dtype.unwrap_or(Dtype::F32),
            num_blocks,
            max_context: longest,
        };
        let hidden = setup.model.config.hidden_size;
        let stage = |_| Mutex::new(TapStage::new(hidden, 1, 1, STEP_ROWS + 1));
        Ok(Activations {
            forward: CpuForward::new(setup.model.clone(), options)?,
            layers: layers.to_vec(),
            stages: layers.iter().map(stage).collect(),
            blocks: (0..num_blocks as u32).collect(),
            adapter: None,
        })
    }

    /// The same with the activations of `adapter`.
    pub fn with_adapter(self, adapter: Option<Arc<Adapter>>) -> Activations {
        Activations { adapter, ..self }
    }

    /// Appends `answer` to `collected`, with the rows `generated`: output tokens fed at each,
    /// ascending.
    pub fn add(&mut self, collected: &mut Collected, answer: Answer, generated: &[u32]) {
        let prompt_len = answer.prompt.len() as u32;
        // The last token of an answer is never fed.
        let fed = answer.prompt.len() + answer.tokens.len() - 1;
        let tokens: Vec<u32> =
            answer.prompt.iter().chain(&answer.tokens).copied().take(fed).collect();
        collected.push(answer);
        collected.push_rows(generated);
        let mut rows = generated.iter().map(|&generated| prompt_len + generated - 1).peekable();
        for (step, chunk) in tokens.chunks(self.forward.options().max_rows).enumerate() {
            let start = step * self.forward.options().max_rows;
            let mut batch = Batch::default();
            batch.push(0, start as u32, chunk, &self.blocks, false);
            if let Some(adapter) = &self.adapter {
                batch.adapt(adapter);
            }
            let end = (start + chunk.len()) as u32;
            let mut wanted = Vec::new();
            while let Some(row) = rows.next_if(|&row| row < end) {
                wanted.push(row);
            }
            self.step(&batch, prompt_len, &wanted);
            self.append(collected);
        }
        // Threads that the caller starts next would share its CPU.
        self.forward.pool().release_caller();
    }

    /// Feeds a step, and stages the rows at the positions `wanted`, and the mean over the prompt
    /// where the step completes it.
    fn step(&mut self, batch: &Batch, prompt_len: u32, wanted: &[u32]) {
        let start = batch.positions[0];
        let end = start + batch.rows() as u32;
        let mut plan = TapPlan::default();
        let staged = |generated| TapRow { generated, prompt_len, ..TapRow::default() };
        if start < prompt_len {
            let is_complete = end >= prompt_len;
            plan.means.push(PromptRun {
                first_row: 0,
                rows: end.min(prompt_len) - start,
                request: 0,
                first_position: start,
                prompt_len,
                stage_row: is_complete.then_some(0),
            });
            plan.rows.extend(is_complete.then_some(staged(0)));
        }
        for &position in wanted {
            plan.singles.push((position - start, plan.rows.len() as u32));
            plan.rows.push(staged(position + 1 - prompt_len));
        }
        let taps: Vec<Tap<'_>> = self
            .layers
            .iter()
            .zip(&self.stages)
            .map(|(&layer, stage)| Tap { layer, at: 0, step: 1, plan: &plan, receiver: stage })
            .collect();
        self.forward.forward(batch, &taps);
    }

    /// Appends what the last step staged.
    fn append(&mut self, collected: &mut Collected) {
        for (layer, stage) in self.stages.iter_mut().enumerate() {
            let stage = stage.get_mut().unwrap_or_else(PoisonError::into_inner);
            let width = self.forward.model().config.hidden_size;
            let (rows, activations) = (stage.rows(), stage.activations());
            let means = rows.iter().take_while(|row| row.generated == 0).count();
            let (mean, singles) = activations.split_at(means * width);
            collected.mean(layer, mean);
            collected.extend(layer, singles);
        }
    }
}

/// Returns `wanted` of the positions of an answer of `tokens` tokens, output tokens fed at each:
/// one at random from each of as many parts, whose lengths grow by one factor, as the first tokens
/// decide the order of requests. All if `wanted` is 0 or more than there are; at most
/// [`trail_probe::MAX_BINS`] parts.
pub fn sample_rows(tokens: usize, wanted: usize, rng: &mut Rng) -> Vec<u32> {
    // The last token of an answer is never fed.
    let fed = tokens - 1;
    if wanted == 0 || wanted >= fed {
        return (1..=fed as u32).collect();
    }
    let parts = Bins::log(wanted, fed as u32);
    let part = |part: &[f64]| 1 + part[0] as u32 + rng.below((part[1] - part[0]) as u64) as u32;
    parts.edges().windows(2).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_over_parts_that_grow() {
        let mut rng = Rng::new(1);
        assert_eq!(sample_rows(4, 0, &mut rng), [1, 2, 3]);
        assert_eq!(sample_rows(4, 3, &mut rng), [1, 2, 3]);
        assert_eq!(sample_rows(1, 16, &mut rng), [] as [u32; 0]);
        for tokens in 18..200 {
            let rows = sample_rows(tokens, 16, &mut rng);
            assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "{rows:?}");
            assert!(rows[0] >= 1 && rows[15] < tokens as u32);
        }
        for _ in 0..50 {
            let rows = sample_rows(1000, 16, &mut rng);
            assert_eq!(rows[0], 1, "{rows:?}");
            // Half in the first tenth.
            assert!(rows[8] < 100 && rows[15] > 600, "{rows:?}");
        }
    }
}
