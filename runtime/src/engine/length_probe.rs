//! The length probe as the engine runs it: the consumer of the layer-k tap.
//!
//! One protocol for both backends:
//!
//! 1. After layer k the rows with a prediction ([`TapPlan`]) are copied to the stage, and the tasks
//!    of the probe's MLP become claimable: by [`HiddenSink::publish_hidden`] on the engine's
//!    thread of the CPU backend, by [`RowSink::stage`] and [`RowSink::predict`] for a device.
//! 2. Threads with spare time claim tasks: pool threads that would otherwise wait at a barrier, or
//!    the device backend's own. The thread that finishes the last task smooths every row and
//!    publishes it to its request's [`Cell`].
//! 3. The engine reads the cells when it plans, and never waits for one. Where a step has draft
//!    rows, their predictions are published once it knows which were accepted
//!    ([`LengthProbe::verify`]).
//!
//! Source: TRAIL, sections 3.1 (probe, smoothing) and 3.2 (upper layers run meanwhile).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::{self, ThreadId};
use std::time::Instant;

use half::bf16;
use trail_probe::{
    Beside, Cell, Head, Partials, Probe, PromptSums, Reading, Rows, TapLayers, Tracker,
};

use super::task_claims::TaskClaims;
use crate::backend::{Batch, HiddenSink, RowSink, TapPlan, TapRow, TapStage};

/// Publication of a step's predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smoothed {
    /// The thread that smoothed and published them.
    pub thread: ThreadId,
    /// Start of smoothing.
    pub begun: Instant,
    /// Time at which all were published.
    pub published: Instant,
}

/// State of the thread that finishes the last task of a step.
struct Posteriors {
    tracker: Tracker,
    /// `[max rows, bins]`.
    probabilities: Vec<f32>,
}

/// The rows of a step, and the prompts' shares of all requests.
struct Staged {
    tap: TapStage,
    /// `[requests]`.
    prompts: Box<[PromptSums]>,
}

impl Staged {
    /// Reads the prompts whose means are among the staged rows.
    fn read_prompts(&mut self, head: &Head, partials: &Partials) {
        let rows = self.tap.rows().iter().zip(self.tap.activations().chunks_exact(head.d()));
        for (row, mean) in rows.filter(|(row, _)| row.generated == 0) {
            let to = &mut self.prompts[row.request as usize];
            head.read_prompt(mean, row.prompt_len, partials, to);
        }
    }

    /// The inputs of staged row number `row` beside its activation.
    fn beside(&self, row: usize) -> Beside<'_> {
        let row = &self.tap.rows()[row];
        let prompt = Some(&self.prompts[row.request as usize]);
        Beside { generated: row.generated, prompt }
    }
}

/// The probe of one engine, its posteriors, and the cells from which the engine reads estimates.
pub struct LengthProbe {
    layers: TapLayers,
    head: Head,
    partials: Partials,
    /// Written while no task is claimable; read by tasks.
    stage: RwLock<Staged>,
    posteriors: Mutex<Posteriors>,
    /// The last step whose predictions were all published. Not in `posteriors`, whose lock is held
    /// while a step is smoothed: the engine's thread reads this one at every step.
    smoothed: Mutex<Option<(u64, Smoothed)>>,
    /// Tasks of the probe's MLP over the staged rows.
    tasks: TaskClaims,
    /// A thread panicked in a task, or while it handed activations over: no predictions will come.
    broken: AtomicBool,
    /// The last step whose predictions were all published.
    done: AtomicU64,
    /// The last step with draft rows whose probabilities are there.
    computed: AtomicU64,
    /// Predictions that contradicted what was believed before.
    surprises: AtomicU64,
    cells: Box<[Cell]>,
}

impl LengthProbe {
    /// A probe for `requests` request indices and at most `max_rows` predictions per step.
    pub fn new(probe: Probe, requests: usize, max_rows: usize) -> Self {
        let hidden = probe.head.d() / probe.layers.count();
        let bins = probe.bins;
        let stage = Staged {
            tap: TapStage::new(hidden, probe.layers.count(), requests, max_rows),
            prompts: (0..requests).map(|_| probe.head.prompt_sums()).collect(),
        };
        let posteriors = Posteriors {
            tracker: Tracker::new(probe.filter(), requests),
            probabilities: vec![0.0; max_rows * bins.count()],
        };
        LengthProbe {
            layers: probe.layers,
            partials: Partials::new(&probe.head, max_rows),
            head: probe.head,
            stage: RwLock::new(stage),
            posteriors: Mutex::new(posteriors),
            smoothed: Mutex::new(None),
            tasks: TaskClaims::new(),
            broken: AtomicBool::new(false),
            done: AtomicU64::new(0),
            computed: AtomicU64::new(0),
            surprises: AtomicU64::new(0),
            cells: (0..requests).map(|_| Cell::default()).collect(),
        }
    }

    /// Keeps what requests that share KV blocks, of `num_blocks`, need of each: the sum of its
    /// activations.
    pub fn keep_blocks(&self, num_blocks: usize) {
        self.stage.write().expect("no task panicked").tap.keep_blocks(num_blocks);
    }

    /// The layers whose outputs are tapped.
    pub fn layers(&self) -> TapLayers {
        self.layers
    }

    /// The latest estimate for the request at index `idx`, if any.
    pub fn read(&self, idx: u32) -> Option<Reading> {
        self.cells[idx as usize].try_read()
    }

    /// True if all predictions of `step` are published.
    pub fn is_done(&self, step: u64) -> bool {
        self.done.load(Ordering::Acquire) >= step
    }

    /// Predictions so far that contradicted what was believed before.
    pub fn surprises(&self) -> u64 {
        self.surprises.load(Ordering::Relaxed)
    }

    /// True if a thread of the probe panicked: no predictions will come.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Publication of the predictions of `step`; `None` if it has none, if they are not all there,
    /// or if those of a later step are.
    pub fn smoothed(&self, step: u64) -> Option<Smoothed> {
        let smoothed = *self.smoothed.lock().unwrap_or_else(PoisonError::into_inner);
        smoothed.filter(|(of, _)| *of == step).map(|(_, smoothed)| smoothed)
    }

    fn run_task(&self) -> bool {
        let Some(task) = self.tasks.claim() else { return false };
        let _guard = PanicGuard(&self.broken);
        let stage = self.stage.read().expect("no task panicked");
        let rows = stage.tap.rows();
        let beside = |row| stage.beside(row);
        let of = Rows { activations: stage.tap.activations(), beside: &beside };
        self.head.run_task(task, of, rows.len(), &self.partials);
        if self.tasks.finish() {
            let begun = Instant::now();
            let mut posteriors = self.posteriors.lock().expect("no task panicked");
            let probabilities = &mut posteriors.probabilities[..rows.len() * self.head.bins()];
            self.head.finish_rows(0..rows.len(), &self.partials, probabilities);
            let step = stage.tap.step();
            match stage.tap.has_drafts() {
                true => self.computed.store(step, Ordering::Release),
                false => self.publish(&mut posteriors, begun, step, rows, None, |_| true),
            }
        }
        true
    }

    /// Publishes the predictions of `step`, which has draft rows, without those that
    /// `is_accepted` rejects. Called once its tokens are sampled.
    pub fn verify(&self, step: u64, is_accepted: impl Fn(&TapRow) -> bool) {
        while self.run_task()
            || !(self.computed.load(Ordering::Acquire) >= step || self.is_broken())
        {
            std::hint::spin_loop();
        }
        if self.is_broken() {
            return;
        }
        let begun = Instant::now();
        let mut stage = self.stage.write().expect("no task panicked");
        stage.tap.verify(&is_accepted);
        let mut posteriors = self.posteriors.lock().expect("no task panicked");
        self.publish(&mut posteriors, begun, step, stage.tap.rows(), None, is_accepted);
    }

    /// Smooths and publishes the rows of a step that `is_accepted`, from `given` probabilities or
    /// from those in `posteriors`.
    fn publish(
        &self,
        posteriors: &mut Posteriors,
        begun: Instant,
        step: u64,
        rows: &[TapRow],
        given: Option<&[f32]>,
        is_accepted: impl Fn(&TapRow) -> bool,
    ) {
        let Posteriors { tracker, probabilities } = posteriors;
        let probabilities = given.unwrap_or(&probabilities[..]);
        let predicted = rows.iter().zip(probabilities.chunks_exact(self.head.bins()));
        for (row, p) in predicted.filter(|(row, _)| is_accepted(row)) {
            let idx = row.request as usize;
            if let Some(estimate) = tracker.observe(idx, row.generation, row.generated, p) {
                self.cells[idx].publish(step, &estimate);
            }
        }
        self.surprises.store(tracker.surprises(), Ordering::Relaxed);
        let thread = thread::current().id();
        let smoothed = Smoothed { thread, begun, published: Instant::now() };
        *self.smoothed.lock().unwrap_or_else(PoisonError::into_inner) = Some((step, smoothed));
        self.done.store(step, Ordering::Release);
    }
}

/// Sets its flag if dropped by a panic.
struct PanicGuard<'a>(&'a AtomicBool);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl HiddenSink for LengthProbe {
    fn publish_hidden(&self, step: u64, at: usize, plan: &TapPlan, batch: &Batch, hidden: &[f32]) {
        let mut stage = self.stage.write().expect("no task panicked");
        stage.tap.take(step, at, plan, batch, hidden);
        if !plan.rows.is_empty() && at + 1 == self.layers.count() {
            stage.read_prompts(&self.head, &self.partials);
            drop(stage);
            self.tasks.offer(self.head.tasks(plan.rows.len()));
        }
    }

    fn assist(&self) -> bool {
        self.run_task()
    }
}

impl RowSink for LengthProbe {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        let activations = activations.iter().map(|value| value.to_f32());
        let mut stage = self.stage.write().expect("no task panicked");
        stage.tap.fill(step, rows, activations);
        stage.read_prompts(&self.head, &self.partials);
    }

    fn predict(&self) {
        let (step, rows) = {
            let stage = self.stage.read().expect("no task panicked");
            (stage.tap.step(), stage.tap.rows().len())
        };
        if rows == 0 {
            return;
        }
        self.tasks.offer(self.head.tasks(rows));
        // Until the thread with the last task has published, or has left that to `verify`; never,
        // if that thread panicked.
        let is_over = || self.is_done(step) || self.computed.load(Ordering::Acquire) >= step;
        while self.run_task() || !(is_over() || self.is_broken()) {
            std::hint::spin_loop();
        }
    }

    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]) {
        let begun = Instant::now();
        if rows.iter().any(|row| row.is_draft) {
            self.stage.write().expect("no task panicked").tap.fill(step, rows, std::iter::empty());
            let mut posteriors = self.posteriors.lock().expect("no task panicked");
            posteriors.probabilities[..probabilities.len()].copy_from_slice(probabilities);
            return self.computed.store(step, Ordering::Release);
        }
        let mut posteriors = self.posteriors.lock().expect("no task panicked");
        self.publish(&mut posteriors, begun, step, rows, Some(probabilities), |_| true);
    }

    fn assist(&self) -> bool {
        self.run_task()
    }

    fn fail(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}
