//! Prompts and decode steps launched on a CUDA backend directly, with one step in flight.

use std::time::Instant;

use trail_runtime::backend::{BLOCK_TOKENS, Backend, Batch, Sampled, SamplingParams, Step};
use trail_runtime::cuda::{CudaBackend, CudaOptions, DEVICE_TIMEOUT, TapMode};

use crate::model::BenchModel;

/// Sizes of the backend.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most requests at once.
    pub requests: usize,
    /// Most rows of a step.
    pub rows: usize,
    /// Longest context, tokens.
    pub context: usize,
}

/// Measurements of decode steps.
#[derive(Clone, Debug, Default)]
pub struct RunnerStats {
    /// From the end of one step to the end of the next, microseconds.
    pub step_us: Vec<f64>,
    /// Host time to build and launch a step, microseconds.
    pub launch_us: Vec<f64>,
}

/// One backend, and the requests it works on.
pub struct Runner {
    backend: CudaBackend,
    batch: Batch,
    sampled: Vec<Sampled>,
    /// Block ids of all requests, concatenated.
    blocks: Vec<u32>,
    blocks_each: usize,
    vocab: u32,
    step: u64,
    /// Measurements since the caller last took them.
    pub stats: RunnerStats,
}

impl Runner {
    /// A backend of `sizes` without a tap.
    pub fn new(bench: &BenchModel, sizes: Sizes) -> Result<Runner, String> {
        let settings = bench.settings();
        let blocks_each = sizes.context.div_ceil(BLOCK_TOKENS);
        let options = CudaOptions {
            ordinal: bench.ordinal(),
            max_rows: sizes.rows.max(sizes.requests),
            max_segments: sizes.requests,
            max_requests: sizes.requests,
            max_context: sizes.context,
            kv_blocks: Some(sizes.requests * blocks_each),
            host_kv_bytes: 0,
            graphs: settings.graphs,
            order: settings.order,
            megakernel: settings.megakernel,
            tap_layer: None,
            tap: TapMode::Off,
            probe: None,
            probe_threads: settings.probe_threads,
            shares_blocks: false,
            max_drafts: 0,
            device_timeout: DEVICE_TIMEOUT,
            checksums: false,
        };
        let backend = CudaBackend::new(&bench.model, &options, None, &mut |_| {})
            .map_err(|error| error.to_string())?;
        if !backend.warnings().is_empty() {
            return Err(backend.warnings().join("; "));
        }
        let blocks = sizes.requests * blocks_each;
        Ok(Runner {
            backend,
            batch: Batch::with_capacity(sizes.rows.max(sizes.requests), sizes.requests, blocks),
            sampled: Vec::with_capacity(sizes.requests),
            blocks: (0..blocks as u32).collect(),
            blocks_each,
            vocab: bench.model.config.vocab_size as u32,
            step: 0,
            stats: RunnerStats::default(),
        })
    }

    /// The backend.
    pub fn backend(&self) -> &CudaBackend {
        &self.backend
    }

    /// Prefills a prompt of `tokens` tokens for request `request`, in steps of at most `rows` rows.
    /// Returns its seconds.
    pub fn prefill(&mut self, request: u32, tokens: usize, rows: usize) -> Result<f64, String> {
        let vocab = self.vocab;
        let ids: Vec<u32> =
            (0..tokens as u32).map(|at| (at * 7 + request * 13 + 1) % vocab).collect();
        let start = Instant::now();
        for (index, chunk) in ids.chunks(rows).enumerate() {
            let (first, last) = (index * rows, index * rows + chunk.len() == tokens);
            let blocks = &self.blocks[request as usize * self.blocks_each..][..self.blocks_each];
            self.batch.clear();
            self.batch.push(request, first as u32, chunk, blocks, last);
            self.launch()?;
            self.collect()?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Runs `steps` decode steps of the first `count` requests, from `position` on. Returns the
    /// tokens of the last one.
    pub fn decode(
        &mut self,
        count: usize,
        position: usize,
        steps: usize,
    ) -> Result<Vec<u32>, String> {
        let mut ended = Instant::now();
        for at in 0..=steps {
            if at < steps {
                let begin = Instant::now();
                self.fill(count, position + at, at > 0);
                self.launch()?;
                self.stats.launch_us.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            if at > 0 {
                self.collect()?;
                let now = Instant::now();
                // The first has no predecessor.
                if at > 1 {
                    self.stats.step_us.push((now - ended).as_secs_f64() * 1e6);
                }
                ended = now;
            }
        }
        Ok(self.sampled_ids())
    }

    /// Tokens of the last collected step.
    pub fn sampled_ids(&self) -> Vec<u32> {
        self.sampled.iter().flatten().map(|token| token.id).collect()
    }

    /// One token of each of the first `count` requests; `pending` if a step in flight samples it.
    fn fill(&mut self, count: usize, position: usize, pending: bool) {
        self.batch.clear();
        for (request, blocks) in self.blocks.chunks_exact(self.blocks_each).take(count).enumerate()
        {
            let (request, position) = (request as u32, position as u32);
            match pending {
                true => self.batch.push_pending(request, position, blocks),
                false => self.batch.push(
                    request,
                    position,
                    &[(request * 31 + 1) % self.vocab],
                    blocks,
                    true,
                ),
            }
        }
    }

    fn launch(&mut self) -> Result<(), String> {
        self.step += 1;
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let step = Step { number: self.step, batch: &self.batch, sampling: &greedy, tap: None };
        self.backend.launch(&step).map_err(|fault| fault.0)
    }

    fn collect(&mut self) -> Result<(), String> {
        self.sampled.clear();
        self.backend.collect(&mut self.sampled).map_err(|fault| fault.0)?;
        match self.sampled.iter().find_map(|sampled| sampled.as_ref().err()) {
            Some(error) => Err(error.to_string()),
            None => Ok(()),
        }
    }
}
