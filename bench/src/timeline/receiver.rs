//! The forecast's side of the tap on a device, with stamps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use half::bf16;
use trail_runtime::engine::{Forecast, TapReceiver, TapRow};

use super::SpanKind;
use super::recorder::Recorder;

/// Forwards each call to the forecast and stamps its duration.
pub struct TracedReceiver {
    forecast: Arc<Forecast>,
    recorder: Arc<Recorder>,
    /// The step staged last.
    step: AtomicU64,
}

impl TracedReceiver {
    /// A receiver that forwards to `forecast` and stamps into `recorder`.
    pub fn new(forecast: Arc<Forecast>, recorder: Arc<Recorder>) -> TracedReceiver {
        TracedReceiver { forecast, recorder, step: AtomicU64::new(0) }
    }

    fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }
}

impl TapReceiver for TracedReceiver {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        let begin = Instant::now();
        self.step.store(step, Ordering::Relaxed);
        self.forecast.stage(step, rows, activations);
        self.recorder.stamp(SpanKind::Stage, step, begin);
    }

    fn open(&self) {
        let begin = Instant::now();
        self.forecast.open();
        self.recorder.stamp(SpanKind::Head, self.step(), begin);
    }

    fn assist(&self) -> bool {
        self.recorder.register_thread();
        let begin = Instant::now();
        let assisted = self.forecast.assist();
        if assisted {
            self.recorder.stamp(SpanKind::Head, self.step(), begin);
        }
        assisted
    }

    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]) {
        let begin = Instant::now();
        self.forecast.publish_probabilities(step, rows, probabilities);
        self.recorder.stamp(SpanKind::Smooth, step, begin);
    }
}
