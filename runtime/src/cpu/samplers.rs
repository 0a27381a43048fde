//! Sampling of a step's rows, over the threads of the forward pass.

use std::sync::{Mutex, PoisonError};

use crate::backend::{Allowed, Batch, NonFiniteLogits, Sampled, SamplingInputs, Scored};
use crate::sampling::{History, Sampler};

use super::CpuForward;

/// A sampler for each thread.
pub struct Samplers {
    /// Used by one thread each; a lock that nothing else holds.
    workers: Vec<Mutex<Sampler>>,
    /// The sampled rows of the batch: index of the segment, and draft tokens after the row.
    wanted: Vec<(u32, u32)>,
    /// One for each of `wanted`.
    sampled: Vec<Mutex<Sampled>>,
    /// One for each row of a block of scored rows.
    scored: Vec<Mutex<Scored>>,
}

impl Samplers {
    /// Samplers for the threads, the vocabulary and the segments of `forward`.
    pub fn new(forward: &CpuForward) -> Self {
        let (options, vocab) = (forward.options(), forward.model().config.vocab_size);
        let workers = (0..options.threads.max(1)).map(|_| Mutex::new(Sampler::new(vocab)));
        let sampled = (0..options.max_sampled()).map(|_| Mutex::new(Err(NonFiniteLogits)));
        Samplers {
            workers: workers.collect(),
            wanted: Vec::with_capacity(options.max_sampled()),
            sampled: sampled.collect(),
            scored: (0..options.max_sampled()).map(|_| Mutex::new(Err(NonFiniteLogits))).collect(),
        }
    }

    /// Samples a token for each sampled row of `batch`, the last one that `forward` was fed with,
    /// and appends them to `out` in the order of the rows. A draft token is taken for the one
    /// that was sampled before it: where it was not, the caller drops the result.
    pub fn sample(
        &mut self,
        forward: &mut CpuForward,
        batch: &Batch,
        inputs: &dyn SamplingInputs,
        out: &mut Vec<Sampled>,
    ) {
        let Samplers { workers, wanted, sampled, .. } = self;
        wanted.clear();
        for (index, segment) in (0..).zip(&batch.segments) {
            wanted
                .extend((0..segment.sampled_rows().len() as u32).rev().map(|after| (index, after)));
        }
        forward.for_each_logits(|worker, row, logits| {
            let (segment, after) = wanted[row];
            let segment = &batch.segments[segment as usize];
            let input = inputs.of(segment.request);
            let known = input.generated.len() - after as usize;
            let history = History { prompt: input.prompt, generated: &input.generated[..known] };
            let position = segment.start + segment.len - after;
            let allowed = input.allowed.map_or(Allowed::Any, |tokens| tokens.after(known));
            let mut sampler = workers[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let params = input.params;
            let token = sampler.sample_allowed(logits, params, history, position, &allowed);
            *sampled[row].lock().unwrap_or_else(PoisonError::into_inner) = token;
        });
        let tokens = sampled.iter_mut().take(wanted.len());
        out.extend(tokens.map(|token| *token.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Scores the token after each scored row of `batch`, the last one that `forward` was fed with,
    /// and appends them to `out` in the order of the rows. In blocks of rows, so that the logits of
    /// a prompt take no more memory than those of a step; they replace those of the pass.
    pub fn score(
        &mut self,
        forward: &mut CpuForward,
        batch: &Batch,
        inputs: &dyn SamplingInputs,
        out: &mut Vec<Scored>,
    ) {
        let Samplers { workers, scored, .. } = self;
        for segment in batch.segments.iter().filter(|segment| segment.scored > 0) {
            let (rows, input) = (segment.scored_rows(), inputs.of(segment.request));
            for first in rows.clone().step_by(scored.len()) {
                let block = first..rows.end.min(first + scored.len() as u32);
                let next = segment.start + (first - segment.first_row) + 1;
                forward.logits_of(batch, block.clone());
                forward.for_each_logits(|worker, row, logits| {
                    let mut sampler =
                        workers[worker].lock().unwrap_or_else(PoisonError::into_inner);
                    let id = input.prompt[next as usize + row];
                    let top = input.params.prompt_logprobs.unwrap_or(0);
                    let token = sampler.score(logits, id, top);
                    *scored[row].lock().unwrap_or_else(PoisonError::into_inner) = token;
                });
                let tokens = scored.iter_mut().take(block.len());
                let token =
                    |of: &mut Mutex<_>| *of.get_mut().unwrap_or_else(PoisonError::into_inner);
                out.extend(tokens.map(token));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::{SamplingInput, SamplingParams};
    use crate::cpu::{Compute, CpuOptions, Isa};
    use crate::model::{Dtype, Model, ModelConfig};

    /// Parameters by request.
    struct Table(Vec<SamplingParams>);

    impl SamplingInputs for Table {
        fn of(&self, request: u32) -> SamplingInput<'_> {
            let params = &self.0[request as usize];
            SamplingInput { params, prompt: &[1, 2], generated: &[3], allowed: None }
        }
    }

    /// More requests than threads, with parameters of their own, and one without logits: each token
    /// is that of a sampler alone.
    #[test]
    fn every_request_is_sampled_with_its_own_parameters_on_any_thread() {
        let config = ModelConfig::named("tiny").unwrap();
        let model = Arc::new(Model::random_of(config, Dtype::F32, 1).unwrap());
        let options = CpuOptions {
            threads: 3,
            pin: false,
            isa: Isa::Auto,
            compute: Compute::Exact,
            repack: false,
            max_rows: 16,
            max_segments: 16,
            kv_dtype: Dtype::F32,
            num_blocks: 16,
            max_context: 16,
        };
        let mut forward = CpuForward::new(model.clone(), options).unwrap();
        let mut batch = Batch::default();
        (0..9).for_each(|id| batch.push(id, 0, &[id + 5], &[id], id != 4));
        let params = |id: u64| SamplingParams {
            temperature: 0.3 * (id % 4) as f32,
            repetition_penalty: 1.0 + 0.1 * id as f32,
            seed: id,
            ..SamplingParams::default()
        };
        let table = Table((0..9).map(params).collect());
        let vocab = model.config.vocab_size;
        let logits = forward.forward(&batch, &[]).to_vec();
        let mut alone = Sampler::new(vocab);
        let ids = (0..9).filter(|id| *id != 4);
        let expected: Vec<Sampled> = ids
            .zip(logits.clone().chunks_exact_mut(vocab))
            .map(|(id, logits)| {
                let input = table.of(id);
                let history = History { prompt: input.prompt, generated: input.generated };
                alone.sample(logits, input.params, history, 1)
            })
            .collect();
        let mut samplers = Samplers::new(&forward);
        for _ in 0..20 {
            let mut out = Vec::new();
            samplers.sample(&mut forward, &batch, &table, &mut out);
            assert_eq!(out, expected);
        }
    }
}
