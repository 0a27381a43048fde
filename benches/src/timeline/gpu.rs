//! Records decode steps on a CUDA device: the device clock for its streams, the host clock for
//! threads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trail_runtime::backend::{Backend, Fault, RowSink, Sampled, Step};
use trail_runtime::cuda::{Anchor, CudaBackend, StepTimes};
use trail_runtime::engine::{BuildError, BuiltBackend, EngineConfig, ProbeDevice, SteppedEngine};

use super::lanes::{Recording, arrange};
use super::record::{TracedTap, config, record_steps};
use super::recorder::{Recorder, Stamp};
use super::sizes::Sizes;
use super::{RunInfo, SpanKind, Timeline};
use crate::decoding::StepShape;
use crate::model::BenchModel;

/// Records decode steps of `shape`.
pub fn record(shape: StepShape, bench: &BenchModel) -> Result<Timeline, String> {
    let mut settings = bench.settings();
    // Kernels inside a graph cannot be timed one by one.
    settings.graphs = false;
    let sizes = Sizes::new(shape);
    // One track more than probe threads: the engine's thread.
    let recorder = Arc::new(Recorder::new(settings.probe_threads.max(1) + 1));
    let config = EngineConfig { cuda: settings, ..config(&sizes, bench)? };
    let (vocab, layers) = (bench.model.config.vocab_size, bench.model.config.num_layers);
    let (mut layer, mut device) = (0, String::new());
    let error_s = Arc::new(Mutex::new(0.0));
    let (traced, traced_error_s) = (recorder.clone(), error_s.clone());
    let smoothed = record_steps(sizes, vocab, &recorder, config, |config| {
        let model = bench.model.clone();
        let built = SteppedEngine::with_backend(model, config, |config, model, probe| {
            let parts = probe.ok_or_else(|| BuildError::Refused("no probe".into()))?;
            layer = parts.probe.layers().last();
            let options = config.cuda_options(bench.ordinal(), model, Some(&parts))?;
            let tap = Arc::new(TracedTap::new(parts.probe, traced.clone()));
            let receiver = Some(tap as Arc<dyn RowSink>);
            let mut inner = CudaBackend::new(model, &options, receiver, &mut |_| {})?;
            device = inner.device_name().to_owned();
            let (kv_blocks, clock) = (inner.kv_blocks(), inner.trace()?);
            let backend = TracedBackend { inner, clock, recorder: traced, error_s: traced_error_s };
            Ok(BuiltBackend { backend: Box::new(backend), kv_blocks, device: device.clone() })
        });
        built.map_err(|error| error.to_string())
    })?;
    let error_us = *error_s.lock().unwrap_or_else(PoisonError::into_inner) * 1e6;
    let probe_on = match settings.probe {
        ProbeDevice::Cpu => "CPU",
        ProbeDevice::Gpu => "GPU",
    };
    let run = RunInfo {
        model: bench.title(),
        device: format!("{device}, probe on the {probe_on}"),
        batch: shape.batch,
        waiting: sizes.waiting(),
        context: shape.context,
        notes: notes(layer, layers, error_us),
        clock_error_us: Some(error_us),
    };
    arrange(Recording { threads: recorder.take(), smoothed, on_device: true }, run)
}

/// Notes about the measurement.
fn notes(layer: usize, layers: usize, error_us: f64) -> Vec<String> {
    vec![
        format!("Tapped after layer {layer} (of 0 to {}).", layers - 1),
        format!(
            "Streams: timing events on the device clock, mapped to the host clock by one event pair \
             around an idle device, accurate to \u{b1} {error_us:.1} \u{b5}s."
        ),
        "The recorded steps are launched kernel by kernel, which the events need: slower than the \
         graphs that serving replays."
            .to_owned(),
    ]
}

/// The CUDA backend, with stamps of its streams.
struct TracedBackend {
    inner: CudaBackend,
    clock: Anchor,
    recorder: Arc<Recorder>,
    /// Error of the mapping from the device's clock to that of the host, seconds.
    error_s: Arc<Mutex<f64>>,
}

impl Backend for TracedBackend {
    fn ahead(&self) -> usize {
        self.inner.ahead()
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        self.inner.launch(step)
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.inner.collect(sampled)?;
        if let Some((step, times)) = self.inner.step_times()? {
            stamp(&self.recorder, &self.clock, step, &times);
            // The driver gives the time since the anchor in milliseconds, as f32.
            let rounding_s = f64::from(f32::EPSILON) * times.end_s;
            let mut error_s = self.error_s.lock().unwrap_or_else(PoisonError::into_inner);
            *error_s = self.clock.error.as_secs_f64() + rounding_s;
        }
        Ok(())
    }
}

/// Stamps the parts of `step` on the streams, on the clock of the host.
fn stamp(recorder: &Recorder, clock: &Anchor, step: u64, times: &StepTimes) {
    let at = |seconds: f64| -> Instant { clock.at + Duration::from_secs_f64(seconds.max(0.0)) };
    let push = |kind, begin, end| {
        recorder.push(Stamp { kind, step, begin: at(begin), end: at(end) });
    };
    let Some(tap) = &times.tap else { return };
    push(SpanKind::Lower, times.begin_s, tap.tapped_s);
    push(SpanKind::Upper, tap.tapped_s, times.logits_s);
    push(SpanKind::Sampling, times.logits_s, times.end_s);
    if tap.has_probe {
        push(SpanKind::Probe, tap.forked_s, tap.probed_s);
        push(SpanKind::Copy, tap.probed_s, tap.copied_s);
    } else {
        push(SpanKind::Copy, tap.forked_s, tap.copied_s);
    }
}
