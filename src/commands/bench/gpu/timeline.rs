//! One decode step on a CUDA device, in time: its own clock for what its streams do, the host's for the threads.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_runtime::cuda::{Anchor, CudaBackend, CudaOptions, StepTimes, TapMode};
use trail_runtime::engine::{Forecast, ProbeDevice, TapReceiver};

use super::super::overlap::OverlapArgs;
use super::super::subject::Subject;
use super::super::timeline::arrange::{Recording, arrange};
use super::super::timeline::drive::Line;
use super::super::timeline::receiver::Traced;
use super::super::timeline::recorder::{Recorder, Stamp};
use super::super::timeline::sizes::Sizes;
use super::super::timeline::{Kind, Scene, Timeline};

/// Records decode steps of `batch` requests.
pub fn run(args: &OverlapArgs, subject: &Subject, batch: usize) -> Result<Timeline, String> {
    let settings = subject.settings();
    let probe = subject.probe().map_err(|error| error.to_string())?;
    let sizes = Sizes::new(batch, args.context);
    let layer = probe.layer;
    let options = CudaOptions {
        ordinal: subject.ordinal(),
        max_rows: sizes.rows,
        max_segments: batch,
        max_requests: sizes.requests(),
        max_context: sizes.longest(),
        kv_blocks: Some(sizes.blocks()),
        host_kv_bytes: 0,
        // A graph's kernels cannot be told apart.
        graphs: false,
        megakernel: settings.persistent,
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
    // The engine's thread stamps as well.
    let recorder = Arc::new(Recorder::new(settings.probe_threads.max(1) + 1));
    let receiver: Arc<dyn TapReceiver> = Arc::new(Traced::new(forecast.clone(), recorder.clone()));
    let mut backend = CudaBackend::new(&subject.model, &options, Some(receiver), &mut |_| {})
        .map_err(|error| error.to_string())?;
    let config = &subject.model.config;
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
            step_seq(&recorder, &clock, step, &times);
            last_s.set(times.end_s);
        }
        Ok(())
    };
    line.record(&mut backend, ready, landed)?;
    let anchored_s = clock.get().map_or(0.0, |clock: Anchor| clock.error.as_secs_f64());
    // The driver says how long after the anchor an event was in milliseconds, as f32.
    let error_us = (anchored_s + f64::from(f32::EPSILON) * last_s.get()) * 1e6;
    let device = backend.device_name().to_owned();
    // Its threads step_seq until they end.
    drop(backend);
    let scene = Scene {
        model: subject.title(),
        device: format!("{device}, probe on the {}", match settings.probe {
            ProbeDevice::Cpu => "CPU",
            ProbeDevice::Gpu => "GPU",
        }),
        batch,
        waiting: sizes.waiting(),
        context: args.context,
        notes: vec![
            format!("Tapped behind layer {layer} (of 0 to {}).", config.num_layers - 1),
            format!(
                "Streams: timing events on the device's clock, put on the host's by one event pair around an idle device, good to \u{b1} {error_us:.1} \u{b5}s."
            ),
            "The steps recorded are launched kernel by kernel, for the events' sake: slower than the graphs that serving replays.".to_owned(),
        ],
        clock_error_us: Some(error_us),
    };
    let threads = recorder.take();
    arrange(Recording { threads, smoothed: line.smoothed(), on_device: true }, scene)
}

/// What the streams did for `step`, on the host's clock.
fn step_seq(recorder: &Recorder, clock: &Anchor, step: u64, times: &StepTimes) {
    let at = |seconds: f64| -> Instant { clock.at + Duration::from_secs_f64(seconds.max(0.0)) };
    let push = |kind, begin, end| {
        recorder.push(Stamp { kind, step, begin: at(begin), end: at(end) });
    };
    let Some(tap) = &times.tap else { return };
    push(Kind::Lower, times.begin_s, tap.tapped_s);
    push(Kind::Upper, tap.tapped_s, times.logits_s);
    push(Kind::Sampling, times.logits_s, times.end_s);
    if tap.has_probe {
        push(Kind::Probe, tap.forked_s, tap.probed_s);
        push(Kind::Copy, tap.probed_s, tap.copied_s);
    } else {
        push(Kind::Copy, tap.forked_s, tap.copied_s);
    }
}
