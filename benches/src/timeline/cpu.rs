//! Records decode steps on the CPU backend: the forward pass below and above the tap, and the
//! probe's tasks by thread.

use std::sync::Arc;
use std::time::Instant;

use trail_runtime::backend::{Backend, Fault, HiddenSink, Sampled, Step};
use trail_runtime::cpu::CpuBackend;
use trail_runtime::engine::{BuildError, BuiltBackend, SteppedEngine};

use super::lanes::{Recording, arrange};
use super::record::{TracedTap, config, record_steps};
use super::recorder::{Recorder, Stamp, Track};
use super::sizes::Sizes;
use super::{RunInfo, SpanKind, Timeline};
use crate::decoding::StepShape;
use crate::model::BenchModel;

/// Records decode steps of `shape`.
pub fn record(shape: StepShape, bench: &BenchModel) -> Result<Timeline, String> {
    let sizes = Sizes::new(shape);
    let recorder = Arc::new(Recorder::new(bench.threads()));
    let config = config(&sizes, bench)?;
    let (vocab, layers) = (bench.model.config.vocab_size, bench.model.config.num_layers);
    let (mut layer, mut isa) = (0, String::new());
    let traced = recorder.clone();
    let smoothed = record_steps(sizes, vocab, &recorder, config, |config| {
        let model = bench.model.clone();
        let built = SteppedEngine::with_backend(model, config, |config, model, probe| {
            let probe = probe.ok_or_else(|| BuildError::Refused("no probe".into()))?.probe;
            let tapped = probe.layers();
            layer = tapped.last();
            let tap = Arc::new(TracedTap::new(probe, traced.clone()));
            let forward = config.cpu_forward(model)?;
            isa = forward.isa().to_string();
            let kv_blocks = forward.options().num_blocks;
            let receiver = tap.clone() as Arc<dyn HiddenSink>;
            let inner = CpuBackend::new(forward, Some((tapped, receiver)));
            let backend = Box::new(TracedBackend { inner, tap, recorder: traced });
            Ok(BuiltBackend { backend, kv_blocks, device: "cpu".into() })
        });
        built.map_err(|error| error.to_string())
    })?;
    let run = RunInfo {
        model: bench.title(),
        device: format!("CPU, {} threads, {isa}", bench.threads()),
        batch: shape.batch,
        waiting: sizes.waiting(),
        context: shape.context,
        notes: vec![
            format!("Tapped after layer {layer} (of 0 to {}).", layers - 1),
            "Head tasks run on the threads of the forward pass: where nothing is shown they compute \
             layers, or wait for other threads."
                .to_owned(),
        ],
        clock_error_us: None,
    };
    let threads = complete(recorder.take(), bench.threads());
    arrange(Recording { threads, smoothed, on_device: false }, run)
}

/// Completes the tracks: adds threads of the pool that never called [`HiddenSink::assist`], and
/// ends the engine's launch where its share of the forward pass begins. Sorted by name.
fn complete(mut threads: Vec<Track>, count: usize) -> Vec<Track> {
    for worker in 1..count {
        let name = format!("trail-cpu-{worker}");
        if threads.iter().all(|track| track.name != name) {
            threads.push(Track { thread: None, name, stamps: Vec::new() });
        }
    }
    for track in &mut threads {
        let begins: Vec<(u64, Instant)> = track
            .stamps
            .iter()
            .filter(|stamp| stamp.kind == SpanKind::Share)
            .map(|stamp| (stamp.step, stamp.begin))
            .collect();
        for stamp in track.stamps.iter_mut().filter(|stamp| stamp.kind == SpanKind::Launch) {
            if let Some((_, begin)) = begins.iter().find(|(step, _)| *step == stamp.step) {
                stamp.end = *begin;
            }
        }
    }
    threads.sort_by(|a, b| a.name.cmp(&b.name));
    threads
}

/// The CPU backend, with stamps.
struct TracedBackend {
    inner: CpuBackend,
    tap: Arc<TracedTap>,
    recorder: Arc<Recorder>,
}

impl Backend for TracedBackend {
    fn ahead(&self) -> usize {
        self.inner.ahead()
    }

    fn num_states(&self) -> usize {
        self.inner.num_states()
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let begin = Instant::now();
        self.inner.launch(step)?;
        let (computed, end) = (self.inner.computed(), Instant::now());
        let copied = self.tap.copied(step.number);
        let (copy, above) = copied.ok_or_else(|| Fault("no layer was tapped".to_owned()))?;
        let push = |kind, begin, end| {
            self.recorder.push(Stamp { kind, step: step.number, begin, end });
        };
        push(SpanKind::Lower, begin, copy);
        push(SpanKind::Copy, copy, above);
        push(SpanKind::Upper, above, computed);
        push(SpanKind::Sampling, computed, end);
        push(SpanKind::Share, begin, end);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.inner.collect(sampled)
    }
}
