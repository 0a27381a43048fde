//! Predictions beside the forward pass: the consumer of the layer-k tap.
//!
//! One protocol for both backends:
//!
//! 1. after layer k the rows worth a prediction ([`TapPlan`]) are copied to the stage, and the head's tasks become claimable. On the
//!    CPU backend that is [`TapSink::publish`], on the engine's thread; a device's rows come through [`TapReceiver`];
//! 2. threads that have time take tasks: pool threads that would otherwise wait at a barrier, or the device backend's own. Who
//!    finishes the last task smooths and publishes every row to its slot's [`Cell`];
//! 3. the engine reads the cells when it plans, and never waits for one.
//!
//! Source: TRAIL, sections 3.1 (probe, smoothing) and 3.2 (layers above run meanwhile).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread::{self, ThreadId};
use std::time::Instant;

use half::bf16;
use trail_probe::{Cell, Chain, Head, Partials, Probe, Reading, Smoother, Tracker};

use super::tap::{MeanRun, TapPlan, TapReceiver, TapRow};
use crate::batch::Batch;
use crate::cpu::TapSink;

/// The rows of one step, copied out of the residual stream.
struct Stage {
    step: u64,
    rows: Vec<TapRow>,
    /// `[rows, hidden]`.
    activations: Vec<f32>,
    /// Running sums over each slot's prompt rows: `[slots, hidden]`. A device keeps its own; unused memory here costs no page.
    prompt_sums: Vec<f32>,
}

/// The end of a step's predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smoothed {
    /// Who smoothed and published them.
    pub thread: ThreadId,
    /// Since when.
    pub begun: Instant,
    /// When all were published.
    pub published: Instant,
}

/// What the last finisher of a step writes to.
struct Posteriors {
    tracker: Tracker,
    /// `[max rows, bins]`.
    probabilities: Vec<f32>,
    /// The last step whose predictions were all published, and how.
    ready: Option<(u64, Smoothed)>,
}

/// The probe of one engine, its posteriors, and the cells through which they are read.
pub struct Forecast {
    layer: usize,
    hidden: usize,
    head: Head,
    partials: Partials,
    /// Written while no task is claimable; read by the tasks.
    stage: RwLock<Stage>,
    posteriors: Mutex<Posteriors>,
    /// The next task to claim, and how many there are: `tasks << 32 | next`.
    claims: AtomicU64,
    unfinished: AtomicUsize,
    /// A task panicked: its predictions will not come.
    broken: AtomicBool,
    /// The last step whose predictions were all published.
    done: AtomicU64,
    cells: Box<[Cell]>,
}

impl Forecast {
    /// A forecast over `slots` requests with at most `max_rows` predictions a step.
    pub fn new(probe: Probe, slots: usize, max_rows: usize) -> Self {
        let hidden = probe.head.d();
        let bins = probe.bins;
        let stage = Stage {
            step: 0,
            rows: Vec::with_capacity(max_rows),
            activations: Vec::with_capacity(max_rows * hidden),
            prompt_sums: vec![0.0; slots * hidden],
        };
        let posteriors = Posteriors {
            tracker: Tracker::new(Smoother::new(bins, Chain::Posterior), slots),
            probabilities: vec![0.0; max_rows * bins.count],
            ready: None,
        };
        Forecast {
            layer: probe.layer,
            hidden,
            partials: Partials::new(&probe.head, max_rows),
            head: probe.head,
            stage: RwLock::new(stage),
            posteriors: Mutex::new(posteriors),
            claims: AtomicU64::new(0),
            unfinished: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            done: AtomicU64::new(0),
            cells: (0..slots).map(|_| Cell::default()).collect(),
        }
    }

    /// The block whose output is tapped, 0-based.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Gives `slot` to a new request.
    pub fn begin(&self, slot: u32, generation: u32) {
        let mut posteriors = self.posteriors.lock().expect("no task panicked");
        posteriors.tracker.begin(slot as usize, generation);
    }

    /// What the CPU backend's pass of `step` publishes to.
    pub fn tap<'a>(&'a self, step: u64, plan: &'a TapPlan) -> HostTap<'a> {
        HostTap { forecast: self, step, plan }
    }

    /// The latest prediction for `slot`, if it is there.
    pub fn read(&self, slot: u32) -> Option<Reading> {
        self.cells[slot as usize].try_read()
    }

    /// Whether the predictions of `step` are all published.
    pub fn is_done(&self, step: u64) -> bool {
        self.done.load(Ordering::Acquire) >= step
    }

    /// When the predictions of `step` were all published; `None` if it had none, or they are not, or later ones are.
    pub fn ready(&self, step: u64) -> Option<Instant> {
        self.smoothed(step).map(|smoothed| smoothed.published)
    }

    /// Who smoothed the predictions of `step`, and when; `None` as for [`Forecast::ready`].
    pub fn smoothed(&self, step: u64) -> Option<Smoothed> {
        let ready = self.posteriors.lock().expect("no task panicked").ready;
        ready.filter(|(of, _)| *of == step).map(|(_, smoothed)| smoothed)
    }

    /// Makes the tasks of `rows` staged rows claimable.
    fn offer(&self, rows: usize) {
        let tasks = self.head.tasks(rows);
        self.unfinished.store(tasks, Ordering::Relaxed);
        self.claims.store((tasks as u64) << 32, Ordering::Release);
    }

    /// Claims a task of the present step.
    fn claim(&self) -> Option<usize> {
        // Checked first, so that idle threads do not drive the counter on.
        let claimable = |word: u64| (word & 0xffff_ffff) < word >> 32;
        if !claimable(self.claims.load(Ordering::Relaxed)) {
            return None;
        }
        let word = self.claims.fetch_add(1, Ordering::Acquire);
        claimable(word).then_some((word & 0xffff_ffff) as usize)
    }

    fn run_task(&self) -> bool {
        let Some(task) = self.claim() else { return false };
        let _mourner = Mourner(&self.broken);
        let stage = self.stage.read().expect("no task panicked");
        self.head.run_task(task, &stage.activations, stage.rows.len(), &self.partials);
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            let begun = Instant::now();
            let mut posteriors = self.posteriors.lock().expect("no task panicked");
            let rows = stage.rows.len();
            let probabilities = &mut posteriors.probabilities[..rows * self.head.bins()];
            self.head.finish_rows(0..rows, &self.partials, probabilities);
            self.publish(&mut posteriors, begun, stage.step, &stage.rows, None);
        }
        true
    }

    /// Smooths and publishes the rows of a step, from `given` probabilities or from those in `posteriors`.
    fn publish(
        &self,
        posteriors: &mut Posteriors,
        begun: Instant,
        step: u64,
        rows: &[TapRow],
        given: Option<&[f32]>,
    ) {
        let Posteriors { tracker, probabilities, ready } = posteriors;
        let probabilities = given.unwrap_or(&probabilities[..]);
        for (row, p) in rows.iter().zip(probabilities.chunks_exact(self.head.bins())) {
            let slot = row.slot as usize;
            if let Some(estimate) = tracker.observe(slot, row.generation, row.generated, p) {
                self.cells[slot].publish(step, &estimate);
            }
        }
        let thread = thread::current().id();
        *ready = Some((step, Smoothed { thread, begun, published: Instant::now() }));
        self.done.store(step, Ordering::Release);
    }
}

/// Says that a task panicked, if it does.
struct Mourner<'a>(&'a AtomicBool);

impl Drop for Mourner<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A step of the CPU backend, as it meets the forecast.
#[derive(Clone, Copy)]
pub struct HostTap<'a> {
    forecast: &'a Forecast,
    step: u64,
    plan: &'a TapPlan,
}

impl TapSink for HostTap<'_> {
    fn publish(&self, _: &Batch, hidden: &[f32]) {
        if self.plan.rows.is_empty() && self.plan.means.is_empty() {
            return;
        }
        let mut stage = self.forecast.stage.write().expect("no task panicked");
        stage.take(self.step, self.plan, hidden, self.forecast.hidden);
        drop(stage);
        if !self.plan.rows.is_empty() {
            self.forecast.offer(self.plan.rows.len());
        }
    }

    fn assist(&self) -> bool {
        self.forecast.run_task()
    }
}

impl TapReceiver for Forecast {
    fn stage(&self, step: u64, rows: &[TapRow], activations: &[bf16]) {
        let mut stage = self.stage.write().expect("no task panicked");
        stage.step = step;
        stage.rows.clear();
        stage.rows.extend_from_slice(rows);
        stage.activations.clear();
        stage.activations.extend(activations.iter().map(|value| value.to_f32()));
    }

    fn open(&self) {
        let (step, rows) = {
            let stage = self.stage.read().expect("no task panicked");
            (stage.step, stage.rows.len())
        };
        if rows == 0 {
            return;
        }
        self.offer(rows);
        // Until whoever had the last task has published; for ever, if he never will.
        while self.run_task() || !(self.is_done(step) || self.broken.load(Ordering::Relaxed)) {
            std::hint::spin_loop();
        }
    }

    fn assist(&self) -> bool {
        self.run_task()
    }

    fn publish_probabilities(&self, step: u64, rows: &[TapRow], probabilities: &[f32]) {
        let begun = Instant::now();
        let mut posteriors = self.posteriors.lock().expect("no task panicked");
        self.publish(&mut posteriors, begun, step, rows, Some(probabilities));
    }
}

impl Stage {
    /// Copies what `plan` names out of `hidden` `[rows of the batch, width]`.
    fn take(&mut self, step: u64, plan: &TapPlan, hidden: &[f32], width: usize) {
        self.step = step;
        self.rows.clear();
        self.rows.extend_from_slice(&plan.rows);
        self.activations.clear();
        self.activations.resize(plan.rows.len() * width, 0.0);
        for run in &plan.means {
            self.add_prompt_rows(run, hidden, width);
        }
        for &(row, staged) in &plan.singles {
            let (row, staged) = (row as usize * width, staged as usize * width);
            self.activations[staged..staged + width].copy_from_slice(&hidden[row..row + width]);
        }
    }

    /// Adds a run's rows to its slot's sum, and stages the mean where the prompt is complete.
    fn add_prompt_rows(&mut self, run: &MeanRun, hidden: &[f32], width: usize) {
        let slot = run.slot as usize;
        let sum = &mut self.prompt_sums[slot * width..(slot + 1) * width];
        if run.first_position == 0 {
            sum.fill(0.0);
        }
        let first = run.first_row as usize;
        for row in hidden[first * width..(first + run.rows as usize) * width].chunks_exact(width) {
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += value;
            }
        }
        let Some(staged) = run.stage_row else { return };
        let scale = 1.0 / run.prompt_len as f32;
        let mean = &mut self.activations[staged as usize * width..][..width];
        for (mean, sum) in mean.iter_mut().zip(sum) {
            *mean = *sum * scale;
        }
    }
}
