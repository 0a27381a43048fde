//! The forecast as a device's threads meet it, with their stamps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use half::bf16;
use trail_runtime::engine::{Forecast, TapReceiver, TapRow};

use super::Kind;
use super::recorder::Recorder;

/// Passes everything on, and stamps it.
pub struct Traced {
    /// Who predicts.
    pub forecast: Arc<Forecast>,
    /// Who keeps the stamps.
    pub recorder: Arc<Recorder>,
    step: AtomicU64,
}

impl Traced {
    /// Around `forecast`.
    pub fn new(forecast: Arc<Forecast>, recorder: Arc<Recorder>) -> Traced {
        Traced { forecast, recorder, step: AtomicU64::new(0) }
    }

    /// The step that was staged last.
    fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }
}

impl TapReceiver for Traced {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        let begin = Instant::now();
        self.step.store(step, Ordering::Relaxed);
        self.forecast.stage(step, rows, activations);
        self.recorder.step_seq(Kind::Stage, step, begin);
    }

    fn open(&self) {
        let begin = Instant::now();
        self.forecast.open();
        self.recorder.step_seq(Kind::Head, self.step(), begin);
    }

    fn assist(&self) -> bool {
        self.recorder.attend();
        let begin = Instant::now();
        let assisted = self.forecast.assist();
        if assisted {
            self.recorder.step_seq(Kind::Head, self.step(), begin);
        }
        assisted
    }

    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]) {
        let begin = Instant::now();
        self.forecast.publish_probabilities(step, rows, probabilities);
        self.recorder.step_seq(Kind::Smooth, step, begin);
    }
}
