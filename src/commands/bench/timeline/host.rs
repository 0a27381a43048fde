//! The CPU backend, with stamps: where the tap divides its pass, who runs the probe's tasks, and when.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use trail_runtime::batch::Batch;
use trail_runtime::cpu::{CpuBackend, Tap, TapSink};
use trail_runtime::engine::sampling::{History, Sampled, Sampler};
use trail_runtime::engine::{Backend, Fault, Forecast, HostTap, Step};

use super::super::overlap::OverlapArgs;
use super::super::subject::Subject;
use super::arrange::{Recording, arrange};
use super::drive::Line;
use super::recorder::{Recorder, Stamp, Track};
use super::sizes::Sizes;
use super::{Kind, Scene, Timeline};

/// Records decode steps of `batch` requests.
pub fn run(args: &OverlapArgs, subject: &Subject, batch: usize) -> Result<Timeline, String> {
    let probe = subject.probe().map_err(|error| error.to_string())?;
    let sizes = Sizes::new(batch, args.context);
    let layer = probe.layer;
    let forecast = Arc::new(Forecast::new(probe, sizes.requests(), 2 * batch));
    let recorder = Arc::new(Recorder::new(subject.threads()));
    let backend = subject.backend(sizes.rows, batch, sizes.longest())?;
    let isa = backend.isa();
    let mut host = Host {
        sampler: Sampler::new(subject.model.config.vocab_size),
        backend,
        forecast: forecast.clone(),
        recorder: recorder.clone(),
        sampled: Vec::with_capacity(batch),
    };
    let vocab = subject.model.config.vocab_size;
    let mut line = Line::new(sizes, vocab, forecast, recorder.clone())?;
    line.record(&mut host, |_| Ok(()), |_| Ok(()))?;
    let scene = Scene {
        model: subject.title(),
        device: format!("CPU, {} threads, {isa}", subject.threads()),
        batch,
        waiting: sizes.waiting(),
        context: args.context,
        notes: vec![
            format!("Tapped behind layer {layer} (of 0 to {}).", subject.model.config.num_layers - 1),
            "The threads that run head tasks are the forward pass's own: where nothing is drawn they compute layers, or wait for others that do."
                .to_owned(),
        ],
        clock_error_us: None,
    };
    let threads = with_idle(recorder.take(), subject.threads());
    arrange(Recording { threads, smoothed: line.smoothed(), on_device: false }, scene)
}

/// All of the pool's threads by name: one that never waited for others was never asked for side work, and has no lane yet.
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

/// The engine's CPU backend, stamped.
struct Host {
    backend: CpuBackend,
    sampler: Sampler,
    forecast: Arc<Forecast>,
    recorder: Arc<Recorder>,
    sampled: Vec<Sampled>,
}

/// The tap of one step.
struct Traced<'a> {
    inner: HostTap<'a>,
    recorder: &'a Recorder,
    step: u64,
    /// When the rows began to be copied, and when they had been.
    copied: Mutex<Option<(Instant, Instant)>>,
}

impl TapSink for Traced<'_> {
    fn publish(&self, batch: &Batch, hidden: &[f32]) {
        let begin = Instant::now();
        self.inner.publish(batch, hidden);
        *self.copied.lock().expect("one thread publishes") = Some((begin, Instant::now()));
    }

    fn assist(&self) -> bool {
        self.recorder.attend();
        let begin = Instant::now();
        let assisted = self.inner.assist();
        if assisted {
            self.recorder.step_seq(Kind::Head, self.step, begin);
        }
        assisted
    }
}

impl Backend for Host {
    fn ahead(&self) -> usize {
        0
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let Host { backend, sampler, forecast, recorder, sampled } = self;
        let plan = step.tap.ok_or_else(|| Fault("nothing is tapped".to_owned()))?;
        let sink = Traced {
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
        push(Kind::Lower, begin, copy);
        push(Kind::Copy, copy, above);
        push(Kind::Upper, above, computed);
        push(Kind::Sampling, computed, end);
        push(Kind::Share, begin, end);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.append(&mut self.sampled);
        Ok(())
    }
}
