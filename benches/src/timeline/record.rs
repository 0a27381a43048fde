//! Requests that decode in a stepped engine while others wait, with stamps of every phase.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use half::bf16;
use trail_runtime::backend::{Batch, HiddenSink, RowSink, TapPlan, TapRow};
use trail_runtime::engine::{
    CollectedStep, EngineConfig, Event, LengthProbe, LoopPhase, PolicyKind, QueueConfig, Request,
    RequestHandle, SamplingParams, Smoothed, StepObserver, SteppedEngine,
};

use super::SpanKind;
use super::recorder::{Recorder, Stamp};
use super::sizes::{STEPS, Sizes, WARM_UP};
use crate::model::BenchModel;

/// Predicted output lengths, tokens: the running requests rank before the waiting ones.
const RUNNING_TOKENS: f32 = 250.0;
const WAITING_TOKENS: f32 = 4096.0;

/// Publications of predictions, by step.
type Publications = Arc<Mutex<Vec<(u64, Smoothed)>>>;

/// Stamps the phases of the step loop.
struct Phases {
    recorder: Arc<Recorder>,
    published: Publications,
}

impl StepObserver for Phases {
    fn phase(&mut self, phase: LoopPhase, step: u64, begin: Instant, end: Instant) {
        let kind = match phase {
            LoopPhase::AwaitPredictions => SpanKind::Await,
            LoopPhase::Plan => SpanKind::Plan,
            LoopPhase::Launch => SpanKind::Launch,
            LoopPhase::Collect => SpanKind::Collect,
            LoopPhase::Send => SpanKind::Send,
        };
        self.recorder.push(Stamp { kind, step, begin, end });
    }

    fn collected(&mut self, step: &CollectedStep) {
        if let (Some(smoothed), true) = (step.predicted, self.recorder.is_recording()) {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            published.push((step.number, smoothed));
        }
    }
}

/// Settings of the engine for `sizes`.
pub fn config(sizes: &Sizes, bench: &BenchModel) -> Result<EngineConfig, String> {
    let probe = bench.probe().map_err(|error| error.to_string())?;
    Ok(EngineConfig {
        probe: Some(probe),
        policy: PolicyKind::trail(0.8),
        max_running: Some(sizes.batch),
        token_budget: Some(sizes.rows),
        kv_blocks: Some(sizes.blocks()),
        queue: QueueConfig { max_requests: sizes.requests(), ..QueueConfig::default() },
        ..bench.config()
    })
}

/// Prefills, decodes for a while, and records further steps. Returns the publications of their
/// predictions.
pub fn record_steps(
    sizes: Sizes,
    vocab: usize,
    recorder: &Arc<Recorder>,
    config: EngineConfig,
    build: impl FnOnce(EngineConfig) -> Result<SteppedEngine, String>,
) -> Result<Vec<(u64, Smoothed)>, String> {
    let published = Publications::default();
    let phases = Phases { recorder: recorder.clone(), published: published.clone() };
    let mut engine = build(EngineConfig { observer: Some(Box::new(phases)), ..config })?;
    let mut handles = Vec::new();
    for index in 0..sizes.requests() {
        let runs = index < sizes.batch;
        let id = |at: usize| ((at * 7 + index * 13 + 1) % vocab) as u32;
        let prompt = (0..sizes.context).map(id).collect();
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let request = Request {
            sampling,
            ignore_eos: true,
            initial_prediction: Some(if runs { RUNNING_TOKENS } else { WAITING_TOKENS }),
            ..Request::new(prompt, (sizes.longest() - sizes.context) as u32)
        };
        handles.push(engine.submit(request).map_err(|error| error.to_string())?);
    }
    let mut steps = |count: usize| {
        (0..count).try_for_each(|_| engine.step().map(|_| ()).map_err(|fault| fault.0))
    };
    steps(sizes.prefills() + WARM_UP)?;
    let tokens = |handle: &RequestHandle| {
        std::iter::from_fn(|| handle.try_recv())
            .filter(|e| matches!(e, Event::Token { .. }))
            .count()
    };
    if handles[..sizes.batch].iter().any(|handle| tokens(handle) < WARM_UP) {
        return Err("a request that was to decode did not run".into());
    }
    recorder.start();
    steps(STEPS)?;
    recorder.stop();
    drop(engine);
    let mut published = published.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *published))
}

/// The receiver of tapped activations, with stamps.
pub struct TracedTap {
    probe: Arc<LengthProbe>,
    recorder: Arc<Recorder>,
    /// The step staged last, with start and end of its copy on the CPU backend.
    staged: Mutex<(u64, Option<(Instant, Instant)>)>,
}

impl TracedTap {
    /// A receiver that forwards to `probe` and stamps into `recorder`.
    pub fn new(probe: Arc<LengthProbe>, recorder: Arc<Recorder>) -> TracedTap {
        TracedTap { probe, recorder, staged: Mutex::new((0, None)) }
    }

    fn step(&self) -> u64 {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Start and end of the copy of `step`'s rows on the CPU backend.
    pub fn copied(&self, step: u64) -> Option<(Instant, Instant)> {
        let staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        staged.1.filter(|_| staged.0 == step)
    }

    /// Runs a task of the probe, if any, and stamps it.
    fn traced_task(&self) -> bool {
        self.recorder.register_thread();
        let begin = Instant::now();
        let assisted = RowSink::assist(&*self.probe);
        if assisted {
            self.recorder.stamp(SpanKind::Head, self.step(), begin);
        }
        assisted
    }

    fn set(&self, step: u64, copied: Option<(Instant, Instant)>) {
        *self.staged.lock().unwrap_or_else(PoisonError::into_inner) = (step, copied);
    }
}

impl HiddenSink for TracedTap {
    fn publish_hidden(&self, step: u64, at: usize, plan: &TapPlan, batch: &Batch, hidden: &[f32]) {
        let begin = Instant::now();
        self.set(step, None);
        self.probe.publish_hidden(step, at, plan, batch, hidden);
        self.set(step, Some((begin, Instant::now())));
    }

    fn assist(&self) -> bool {
        self.traced_task()
    }
}

impl RowSink for TracedTap {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        let begin = Instant::now();
        self.set(step, None);
        self.probe.stage(step, rows, activations);
        self.recorder.stamp(SpanKind::Stage, step, begin);
    }

    fn predict(&self) {
        let begin = Instant::now();
        self.probe.predict();
        self.recorder.stamp(SpanKind::Head, self.step(), begin);
    }

    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]) {
        let begin = Instant::now();
        self.probe.publish_probabilities(step, rows, probabilities);
        self.recorder.stamp(SpanKind::Smooth, step, begin);
    }

    fn assist(&self) -> bool {
        self.traced_task()
    }

    fn fail(&self) {
        self.probe.fail();
    }
}
