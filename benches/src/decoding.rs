//! Requests that decode without end in an engine stepped by the benchmark: the loop that serves,
//! with a batch that stays the same.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use trail_cli::Error;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cpu::{Compute, CpuOptions, Isa};
use trail_runtime::engine::{
    CollectedStep, EngineConfig, Event, PolicyKind, QueueConfig, Request, RequestHandle,
    SamplingParams, StepObserver, StepOutcome, SteppedEngine,
};

use crate::model::BenchModel;

/// Output tokens of a request before it is replaced by a new one: its context hardly grows.
const ROUND: u32 = 64;
/// Decode steps of new requests before any is measured.
const WARM_UP: u32 = 4;
/// Rows of a prefill step.
const PREFILL_ROWS: usize = 2048;

/// Measurements of decode steps, from the engine's observer.
#[derive(Clone, Debug, Default)]
pub struct StepStats {
    /// From the end of one step to the end of the next, microseconds.
    pub step_us: Vec<f64>,
    /// From a step's last prediction to its end, microseconds.
    pub slack_us: Vec<f64>,
    /// Rows whose prediction was there when the next step was planned.
    pub fresh: u64,
    /// Rows whose prediction was not.
    pub late: u64,
    last: Option<(u64, Instant)>,
}

impl StepStats {
    /// Appends `more`.
    pub fn extend(&mut self, more: StepStats) {
        self.step_us.extend(more.step_us);
        self.slack_us.extend(more.slack_us);
        self.fresh += more.fresh;
        self.late += more.late;
    }
}

/// Statistics shared between the observer inside the engine and the benchmark.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<StepStats>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, StepStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepObserver for Shared {
    fn predictions(&mut self, _step: u64, fresh: u64, late: u64) {
        let mut stats = self.lock();
        stats.fresh += fresh;
        stats.late += late;
    }

    fn collected(&mut self, step: &CollectedStep) {
        let mut stats = self.lock();
        if let Some((number, end)) = stats.last
            && number + 1 == step.number
        {
            stats.step_us.push((step.end - end).as_secs_f64() * 1e6);
        }
        stats.last = Some((step.number, step.end));
        if let Some(predicted) = step.predicted {
            let slack = step.end.saturating_duration_since(predicted.published);
            stats.slack_us.push(slack.as_secs_f64() * 1e6);
        }
    }
}

/// Shape of the workload.
#[derive(Clone, Copy, Debug)]
pub struct StepShape {
    /// Requests that decode.
    pub batch: usize,
    /// Tokens of each prompt.
    pub context: usize,
}

impl StepShape {
    /// Tokens of a request at its end.
    fn tokens(&self) -> usize {
        self.context + ROUND as usize + 1
    }

    /// Refuses a workload that the model's context or the memory cannot hold, twice: two engines
    /// are compared.
    pub fn check(&self, bench: &BenchModel) -> Result<(), Error> {
        let longest = bench.model.config.max_context;
        if self.tokens() > longest {
            return Err(Error::usage(format!(
                "--context is {}, the model's context {longest}, and {} tokens are generated: lower \
                 --context",
                self.context,
                ROUND + 1
            )));
        }
        let rows = self.rows();
        let options = CpuOptions {
            threads: bench.threads(),
            pin: false,
            isa: Isa::Auto,
            compute: Compute::Fast,
            repack: false,
            max_rows: rows,
            max_segments: self.batch,
            kv_dtype: bench.kv_dtype(),
            num_blocks: self.batch * self.tokens().div_ceil(BLOCK_TOKENS),
            max_context: longest,
        };
        bench.check_memory(&options, 2)
    }

    /// Most rows of a step.
    fn rows(&self) -> usize {
        PREFILL_ROWS.min(self.batch * self.context).max(2 * self.batch)
    }

    /// Settings of an engine for this workload on `bench`.
    pub fn config(&self, bench: &BenchModel) -> EngineConfig {
        let blocks_each = self.tokens().div_ceil(BLOCK_TOKENS);
        EngineConfig {
            // Requests carry what the policy needs where there is no probe.
            replays: true,
            policy: PolicyKind::trail(0.8),
            max_running: Some(self.batch),
            token_budget: Some(self.rows()),
            kv_blocks: Some(self.batch * blocks_each),
            queue: QueueConfig { max_requests: self.batch, ..QueueConfig::default() },
            ..bench.config()
        }
    }
}

/// A stepped engine and the requests that decode in it.
pub struct Decoding {
    engine: SteppedEngine,
    shape: StepShape,
    vocab: u32,
    handles: Vec<RequestHandle>,
    /// Output tokens of each request in the current round.
    tokens: Vec<Vec<u32>>,
    stats: Shared,
    /// Steps left in the current round.
    left: u32,
}

impl Decoding {
    /// Builds the engine with `build` and prefills the first prompts.
    pub fn new(
        shape: StepShape,
        config: EngineConfig,
        vocab: usize,
        build: impl FnOnce(EngineConfig) -> Result<SteppedEngine, String>,
    ) -> Result<Decoding, String> {
        let stats = Shared::default();
        let observer = Some(Box::new(stats.clone()) as _);
        let engine = build(EngineConfig { observer, ..config })?;
        let mut decoding = Decoding {
            engine,
            shape,
            vocab: vocab as u32,
            handles: Vec::new(),
            tokens: Vec::new(),
            stats,
            left: 0,
        };
        decoding.begin_round()?;
        Ok(decoding)
    }

    /// The engine.
    pub fn engine(&self) -> &SteppedEngine {
        &self.engine
    }

    /// Runs `steps` decode steps; microseconds per step, from the first call of the step loop to
    /// the return of the last.
    pub fn steps(&mut self, steps: u32) -> Result<f64, String> {
        if self.left < steps {
            self.begin_round()?;
        }
        let start = Instant::now();
        for _ in 0..steps {
            self.step()?;
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(steps);
        self.left -= steps;
        self.drain_events();
        Ok(us)
    }

    /// The statistics since the last call.
    pub fn take_stats(&mut self) -> StepStats {
        std::mem::take(&mut *self.stats.lock())
    }

    /// Output tokens so far of each request in the current round.
    pub fn tokens(&self) -> &[Vec<u32>] {
        &self.tokens
    }

    fn step(&mut self) -> Result<StepOutcome, String> {
        self.engine.step().map_err(|fault| fault.0)
    }

    /// Ends the current requests and prefills new prompts until all decode. These steps are not in
    /// the statistics.
    fn begin_round(&mut self) -> Result<(), String> {
        let stats = self.take_stats();
        self.handles.clear();
        while self.step()? == StepOutcome::Ran {}
        self.tokens = vec![Vec::new(); self.shape.batch];
        for index in 0..self.shape.batch as u32 {
            let id = |at: u32| (at * 7 + index * 13 + 1) % self.vocab;
            let prompt = (0..self.shape.context as u32).map(id).collect();
            let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
            let request = Request { sampling, ignore_eos: true, ..Request::new(prompt, ROUND + 1) };
            self.handles.push(self.engine.submit(request).map_err(|error| error.to_string())?);
        }
        // All prompts are in when every request has a token.
        let mut begun = 0;
        while self.tokens.iter().any(|tokens| tokens.len() <= WARM_UP as usize) {
            self.step()?;
            self.drain_events();
            begun = self.tokens.iter().map(Vec::len).max().unwrap_or(0) as u32;
        }
        // Requests prefilled in earlier steps are ahead of the last one; a step may be in flight.
        self.left = ROUND.saturating_sub(begun + 1);
        *self.stats.lock() = StepStats { last: None, ..stats };
        Ok(())
    }

    fn drain_events(&mut self) {
        for (handle, tokens) in self.handles.iter().zip(&mut self.tokens) {
            while let Some(event) = handle.try_recv() {
                if let Event::Token { id, .. } = event {
                    tokens.push(id);
                }
            }
        }
    }
}
