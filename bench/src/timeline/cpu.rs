//! Records decode steps on the CPU backend: the forward pass below and above the tap, and the probe's
//! tasks by thread.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use trail_runtime::batch::Batch;
use trail_runtime::cpu::{CpuBackend, Tap, TapSink};
use trail_runtime::engine::sampling::{History, Sampled, Sampler};
use trail_runtime::engine::{Backend, Fault, Forecast, HostTap, Step};

use super::arrange::{Recording, arrange};
use super::drive::Line;
use super::recorder::{Recorder, Stamp, Track};
use super::sizes::Sizes;
use super::{RunInfo, SpanKind, Timeline};
use crate::model::BenchModel;

/// Records decode steps of `batch` requests with prompts of `context` tokens.
pub fn record(bench: &BenchModel, batch: usize, context: usize) -> Result<Timeline, String> {
    let probe = bench.probe().map_err(|error| error.to_string())?;
    let sizes = Sizes::new(batch, context);
    let layer = probe.layer;
    let forecast = Arc::new(Forecast::new(probe, sizes.requests(), 2 * batch));
    let recorder = Arc::new(Recorder::new(bench.threads()));
    let backend = bench.backend(sizes.rows, batch, sizes.longest())?;
    let isa = backend.isa();
    let mut traced = TracedBackend {
        sampler: Sampler::new(bench.model.config.vocab_size),
        backend,
        forecast: forecast.clone(),
        recorder: recorder.clone(),
        sampled: Vec::with_capacity(batch),
    };
    let vocab = bench.model.config.vocab_size;
    let mut line = Line::new(sizes, vocab, forecast, recorder.clone())?;
    line.record(&mut traced, |_| Ok(()), |_| Ok(()))?;
    let run = RunInfo {
        model: bench.title(),
        device: format!("CPU, {} threads, {isa}", bench.threads()),
        batch,
        waiting: sizes.waiting(),
        context,
        notes: vec![
            format!("Tapped after layer {layer} (of 0 to {}).", bench.model.config.num_layers - 1),
            "Head tasks run on the threads of the forward pass: where nothing is drawn they compute \
             layers, or wait for other threads."
                .to_owned(),
        ],
        clock_error_us: None,
    };
    let threads = with_idle(recorder.take(), bench.threads());
    arrange(Recording { threads, smoothed: line.smoothed(), on_device: false }, run)
}

/// Adds the pool's threads that never called [`TapSink::assist`], which therefore have no track yet;
/// sorted by name.
fn with_idle(mut threads: Vec<Track>, count: usize) -> Vec<Track> {
    for worker in 1..count {
        let name = format!("trail-cpu-{worker}");
        if threads.iter().all(|track| track.name != name) {
            threads.push(Track { thread: None, name, stamps: Vec::new() });
        }
    }
    threads.sort_by(|a, b| a.name.cmp(&b.name));
    threads
}

/// The CPU backend with stamps.
struct TracedBackend {
    backend: CpuBackend,
    sampler: Sampler,
    forecast: Arc<Forecast>,
    recorder: Arc<Recorder>,
    sampled: Vec<Sampled>,
}

/// The tap of one step, with stamps.
struct TracedSink<'a> {
    inner: HostTap<'a>,
    recorder: &'a Recorder,
    step: u64,
    /// Start and end of the copy of the tapped rows.
    copied: Mutex<Option<(Instant, Instant)>>,
}

impl TapSink for TracedSink<'_> {
    fn publish(&self, batch: &Batch, hidden: &[f32]) {
        let begin = Instant::now();
        self.inner.publish(batch, hidden);
        *self.copied.lock().expect("one thread publishes") = Some((begin, Instant::now()));
    }

    fn assist(&self) -> bool {
        self.recorder.register_thread();
        let begin = Instant::now();
        let assisted = self.inner.assist();
        if assisted {
            self.recorder.stamp(SpanKind::Head, self.step, begin);
        }
        assisted
    }
}

impl Backend for TracedBackend {
    fn ahead(&self) -> usize {
        0
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let TracedBackend { backend, sampler, forecast, recorder, sampled } = self;
        let plan = step.tap.ok_or_else(|| Fault("nothing is tapped".to_owned()))?;
        let sink = TracedSink {
            inner: forecast.tap(step.number, plan),
            recorder,
            step: step.number,
            copied: Mutex::new(None),
        };
        let begin = Instant::now();
        backend.forward(step.batch, Some(Tap { layer: forecast.layer(), sink: &sink }));
        let computed = Instant::now();
        let vocab = backend.model().config.vocab_size;
        let segments = step.batch.segments.iter().filter(|segment| segment.logits);
        for (segment, logits) in segments.zip(backend.logits_mut().chunks_exact_mut(vocab)) {
            let choice = step.choices.choice(segment.slot);
            let history = History { prompt: choice.prompt, generated: choice.generated };
            sampled.push(sampler.sample(logits, choice.sampling, history, choice.position));
        }
        let end = Instant::now();
        let copied = sink.copied.into_inner().expect("one thread publishes");
        let (copy, above) = copied.ok_or_else(|| Fault("no layer was tapped".to_owned()))?;
        let push = |kind, begin, end| recorder.push(Stamp { kind, step: step.number, begin, end });
        push(SpanKind::Lower, begin, copy);
        push(SpanKind::Copy, copy, above);
        push(SpanKind::Upper, above, computed);
        push(SpanKind::Sampling, computed, end);
        push(SpanKind::Share, begin, end);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.append(&mut self.sampled);
        Ok(())
    }
}
