//! Receivers of tapped rows that keep what they get.

use half::bf16;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;
use trail_runtime::backend::{RowSink, TapRow};

/// A step's rows, as they arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) step: u64,
    pub(crate) rows: Vec<TapRow>,
    pub(crate) values: Vec<f32>,
}

/// Keeps every step that it has to predict from.
#[derive(Default)]
pub(crate) struct Keeper {
    staged: Mutex<Option<Arrived>>,
    pub(crate) opened: Mutex<Vec<Arrived>>,
    /// Steps that must be launched behind a step before its rows are copied, and before they are
    /// predicted from: a slow receiver.
    pub(crate) stage_lag: AtomicU64,
    pub(crate) predict_lag: AtomicU64,
    /// The last launched step, if the test reports it.
    launched: (Mutex<u64>, Condvar),
    pub(crate) assisted: AtomicBool,
    /// The step from which on rows make [`RowSink::stage`] panic; 0: none. Those of one step
    /// may never come: a thread that is late skips them.
    pub(crate) panics_at: AtomicU64,
    pub(crate) failed: AtomicBool,
}

impl Keeper {
    /// Reports the launch of `step`; `u64::MAX`: there will be no other.
    pub(crate) fn launched(&self, step: u64) {
        *self.launched.0.lock().unwrap() = step;
        self.launched.1.notify_all();
    }

    /// Waits until `lag` steps behind `step` are launched.
    fn wait_for(&self, step: u64, lag: u64) {
        if lag == 0 {
            return;
        }
        let launched = self.launched.0.lock().unwrap();
        let limit = Duration::from_secs(60);
        let waiting = |launched: &mut u64| *launched < step + lag;
        let waited = self.launched.1.wait_timeout_while(launched, limit, waiting).unwrap();
        assert!(!waited.1.timed_out(), "step {} is never launched", step + lag);
    }
}

impl RowSink for Keeper {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        self.wait_for(step, self.stage_lag.load(Ordering::Relaxed));
        if (1..=step).contains(&self.panics_at.load(Ordering::Relaxed)) {
            panic!("the planned panic");
        }
        let values = activations.iter().map(|value| value.to_f32()).collect();
        *self.staged.lock().unwrap() = Some(Arrived { step, rows: rows.to_vec(), values });
    }

    fn predict(&self) {
        let staged = self.staged.lock().unwrap().take().expect("something staged");
        self.wait_for(staged.step, self.predict_lag.load(Ordering::Relaxed));
        self.opened.lock().unwrap().push(staged);
    }

    fn assist(&self) -> bool {
        self.assisted.store(true, Ordering::Relaxed);
        false
    }

    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]) {
        let (rows, values) = (rows.to_vec(), probabilities.to_vec());
        self.opened.lock().unwrap().push(Arrived { step, rows, values });
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}
