//! A timeline of the CPU backend: where the tap divides its pass, and the probe's tasks by thread.

use std::sync::Arc;
use std::time::Instant;

use trail_runtime::backend::{Backend, Fault, SampledToken, Step, TapReceiver};
use trail_runtime::cpu::CpuBackend;
use trail_runtime::engine::{BuildError, BuiltBackend};

use super::arrange::{Recording, arrange};
use super::record::{TracedTap, builder, record};
use super::recorder::{Recorder, Stamp, Track};
use super::sizes::Sizes;
use super::{Kind, Scene, Timeline};
use crate::decoding::Shape;
use crate::subject::Subject;

/// Records decode steps of `shape`.
pub fn run(shape: Shape, subject: &Subject) -> Result<Timeline, String> {
    let sizes = Sizes::new(shape);
    let recorder = Arc::new(Recorder::new(subject.threads()));
    let builder = builder(&sizes, subject)?;
    let (vocab, layers) = (subject.model.config.vocab_size, subject.model.config.num_layers);
    let (mut layer, mut isa) = (0, String::new());
    let traced = recorder.clone();
    let smoothed = record(sizes, vocab, &recorder, builder, |builder| {
        let built = builder.build_stepped_with(|builder, model, probe| {
            let probe = probe.ok_or_else(|| BuildError::Refused("no probe".into()))?.probe;
            layer = probe.layer();
            let tap = Arc::new(TracedTap::new(probe, traced.clone()));
            let forward = builder.cpu_forward(model)?;
            isa = forward.isa().to_string();
            let kv_blocks = forward.options().num_blocks;
            let receiver = tap.clone() as Arc<dyn TapReceiver>;
            let inner = CpuBackend::new(forward, Some((layer, receiver)));
            let backend = Box::new(TracedBackend { inner, tap, recorder: traced });
            Ok(BuiltBackend { backend, kv_blocks, device: "cpu".into() })
        });
        built.map_err(|error| error.to_string())
    })?;
    let scene = Scene {
        model: subject.title(),
        device: format!("CPU, {} threads, {isa}", subject.threads()),
        batch: shape.batch,
        waiting: sizes.waiting(),
        context: shape.context,
        notes: vec![
            format!("Tapped after layer {layer} (of 0 to {}).", layers - 1),
            "The threads that run head tasks are the forward pass's own: where nothing is drawn they \
             compute layers, or wait for others that do."
                .to_owned(),
        ],
        clock_error_us: None,
    };
    let threads = with_idle(recorder.take(), subject.threads());
    arrange(Recording { threads, smoothed, on_device: false }, scene)
}

/// All threads of the pool by name: one that never waited for others has run no side task, and has no
/// lane yet.
fn with_idle(mut threads: Vec<Track>, count: usize) -> Vec<Track> {
    for worker in 1..count {
        let name = format!("trail-cpu-{worker}");
        if threads.iter().all(|track| track.name != name) {
            threads.push(Track { thread: None, name, stamps: Vec::new() });
        }
    }
    // The engine's launch ends where its share of the forward pass begins.
    for track in &mut threads {
        let begins: Vec<(u64, Instant)> = track
            .stamps
            .iter()
            .filter(|stamp| stamp.kind == Kind::Share)
            .map(|stamp| (stamp.step, stamp.begin))
            .collect();
        for stamp in track.stamps.iter_mut().filter(|stamp| stamp.kind == Kind::Launch) {
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

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let begin = Instant::now();
        self.inner.launch(step)?;
        let (computed, end) = (self.inner.computed(), Instant::now());
        let copied = self.tap.copied(step.number);
        let (copy, above) = copied.ok_or_else(|| Fault("no layer was tapped".to_owned()))?;
        let push = |kind, begin, end| {
            self.recorder.push(Stamp { kind, step: step.number, begin, end });
        };
        push(Kind::Lower, begin, copy);
        push(Kind::Copy, copy, above);
        push(Kind::Upper, above, computed);
        push(Kind::Sampling, computed, end);
        push(Kind::Share, begin, end);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<SampledToken>) -> Result<(), Fault> {
        self.inner.collect(sampled)
    }
}
