//! Records decode steps on a CUDA device: the device clock for its streams, the host clock for
//! threads.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_runtime::cuda::{Anchor, CudaBackend, CudaOptions, StepTimes, TapMode};
use trail_runtime::engine::{Forecast, ProbeDevice, TapReceiver};

use super::arrange::{Recording, arrange};
use super::drive::Line;
use super::receiver::TracedReceiver;
use super::recorder::{Recorder, Stamp};
use super::sizes::Sizes;
use super::{RunInfo, SpanKind, Timeline};
use crate::model::BenchModel;

/// Records decode steps of `batch` requests with prompts of `context` tokens.
pub fn record(bench: &BenchModel, batch: usize, context: usize) -> Result<Timeline, String> {
    let settings = bench.settings();
    let probe = bench.probe().map_err(|error| error.to_string())?;
    let sizes = Sizes::new(batch, context);
    let layer = probe.layer;
    let options = CudaOptions {
        ordinal: bench.ordinal(),
        max_rows: sizes.rows,
        max_segments: batch,
        max_requests: sizes.requests(),
        max_context: sizes.longest(),
        kv_blocks: Some(sizes.blocks()),
        host_kv_bytes: 0,
        // Kernels inside a graph cannot be timed one by one.
        graphs: false,
        persistent: settings.persistent,
        hopper_products: settings.hopper_products,
        tap_layer: Some(layer),
        tap: match settings.probe {
            ProbeDevice::Cpu => TapMode::Cpu,
            ProbeDevice::Gpu => TapMode::Gpu,
        },
        probe: Some(probe.weights.clone()),
        probe_threads: settings.probe_threads,
        checksums: false,
    };
    let forecast = Arc::new(Forecast::new(probe, sizes.requests(), 2 * batch));
    // One lane more than probe threads: the engine's thread.
    let recorder = Arc::new(Recorder::new(settings.probe_threads.max(1) + 1));
    let receiver: Arc<dyn TapReceiver> =
        Arc::new(TracedReceiver::new(forecast.clone(), recorder.clone()));
    let mut backend = CudaBackend::new(&bench.model, &options, Some(receiver), &mut |_| {})
        .map_err(|error| error.to_string())?;
    let config = &bench.model.config;
    let mut line = Line::new(sizes, config.vocab_size, forecast, recorder.clone())?;
    let clock = Cell::new(None);
    let last_s = Cell::new(0.0);
    let ready = |backend: &mut CudaBackend| {
        clock.set(Some(backend.trace().map_err(|error| error.to_string())?));
        Ok(())
    };
    let landed = |backend: &CudaBackend| {
        let times = backend.step_times().map_err(|error| error.to_string())?;
        if let (Some(clock), Some((step, times))) = (clock.get(), times) {
            stamp(&recorder, &clock, step, &times);
            last_s.set(times.end_s);
        }
        Ok(())
    };
    line.record(&mut backend, ready, landed)?;
    let anchored_s = clock.get().map_or(0.0, |clock: Anchor| clock.error.as_secs_f64());
    // The driver returns the time between anchor and event in milliseconds, as f32.
    let error_us = (anchored_s + f64::from(f32::EPSILON) * last_s.get()) * 1e6;
    let device = backend.device_name().to_owned();
    // The backend's threads stamp until they end.
    drop(backend);
    let probe_on = match settings.probe {
        ProbeDevice::Cpu => "CPU",
        ProbeDevice::Gpu => "GPU",
    };
    let run = RunInfo {
        model: bench.title(),
        device: format!("{device}, probe on the {probe_on}"),
        batch,
        waiting: sizes.waiting(),
        context,
        notes: notes(layer, config.num_layers, error_us),
        clock_error_us: Some(error_us),
    };
    let threads = recorder.take();
    arrange(Recording { threads, smoothed: line.smoothed(), on_device: true }, run)
}

/// The notes below the picture.
fn notes(layer: usize, layers: usize, error_us: f64) -> Vec<String> {
    vec![
        format!("Tapped after layer {layer} (of 0 to {}).", layers - 1),
        format!(
            "Streams: timing events on the device clock, mapped to the host clock by an event pair \
             around an idle device, to within \u{b1} {error_us:.1} \u{b5}s."
        ),
        "The recorded steps are launched kernel by kernel, which the events need: slower than the \
         graphs that serving replays."
            .to_owned(),
    ]
}

/// Stamps the work of the streams for `step`, on the host clock.
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
