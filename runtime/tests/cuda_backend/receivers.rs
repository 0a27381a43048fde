//! Receivers of tapped rows that keep what they get.

use half::bf16;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use trail_runtime::backend::{TapPlan, TapReceiver, TapRow};

/// A step's rows, as they arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) step: u64,
    pub(crate) rows: Vec<TapRow>,
    pub(crate) values: Vec<f32>,
}

/// Keeps every step that it was told to predict from.
#[derive(Default)]
pub(crate) struct Keeper {
    staged: Mutex<Option<Arrived>>,
    pub(crate) opened: Mutex<Vec<Arrived>>,
    /// Duration of a copy, and of a prediction.
    pub(crate) stage_ms: AtomicU64,
    pub(crate) open_ms: AtomicU64,
    pub(crate) assisted: AtomicBool,
    /// The step whose rows make [`TapReceiver::stage`] panic; 0: none.
    pub(crate) panics_at: AtomicU64,
    pub(crate) failed: AtomicBool,
}

impl TapReceiver for Keeper {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        if self.panics_at.load(Ordering::Relaxed) == step {
            panic!("the planned panic");
        }
        let values = activations.iter().map(|value| value.to_f32()).collect();
        std::thread::sleep(Duration::from_millis(self.stage_ms.load(Ordering::Relaxed)));
        *self.staged.lock().unwrap() = Some(Arrived { step, rows: rows.to_vec(), values });
    }

    fn publish_hidden(&self, _step: u64, _plan: &TapPlan, _hidden: &[f32]) {
        unreachable!("a CPU backend's call")
    }

    fn predict(&self) {
        std::thread::sleep(Duration::from_millis(self.open_ms.load(Ordering::Relaxed)));
        let staged = self.staged.lock().unwrap().take().expect("something staged");
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
