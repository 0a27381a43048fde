//! Predictions beside the forward pass: the consumer of the layer-k tap.
//!
//! Protocol (the design's "overlap", on the CPU backend with a ring of one, since a step's tasks are
//! drained before its forward pass returns):
//!
//! 1. after layer k the forward pass calls [`TapSink::publish`] on the engine's thread: the rows
//!    worth a prediction are copied to the stage, and the head's tasks become claimable;
//! 2. pool threads that would otherwise wait at a barrier call [`TapSink::assist`]: one claim, one
//!    task; who finishes the last task smooths and publishes every row to its slot's [`Cell`];
//! 3. between steps the engine reads the cells, and never waits for one.
//!
//! Source: TRAIL, sections 3.1 (probe, smoothing) and 3.2 (layers above run meanwhile).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Instant;

use trail_probe::{Cell, Chain, Head, Partials, Probe, Reading, Smoother, Tracker};

use crate::batch::{Batch, Segment};
use crate::cpu::TapSink;

/// What the stage must know about the request in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    generation: u32,
    prompt_len: u32,
}

/// Which request a staged row is about.
#[derive(Clone, Copy, Debug)]
struct StagedRow {
    slot: u32,
    generation: u32,
    /// Output tokens fed so far; 0 for the prompt's mean.
    generated: u32,
}

/// The rows of one step, copied out of the residual stream.
struct Stage {
    step: u64,
    rows: Vec<StagedRow>,
    /// `[rows, hidden]`.
    activations: Vec<f32>,
    tenants: Vec<Tenant>,
    /// Running sums over each slot's prompt rows: `[slots, hidden]`.
    prompt_sums: Vec<f32>,
}

/// What the last finisher of a step writes to.
struct Posteriors {
    tracker: Tracker,
    /// `[max rows, bins]`.
    probabilities: Vec<f32>,
    ready: Option<Instant>,
}

/// The probe of one engine, its posteriors, and the cells through which they are read.
pub struct Forecast {
    layer: usize,
    hidden: usize,
    head: Head,
    partials: Partials,
    /// Written by `publish` alone, while no task is claimable; read by the tasks.
    stage: RwLock<Stage>,
    posteriors: Mutex<Posteriors>,
    /// The next task to claim, and how many there are: `tasks << 32 | next`.
    claims: AtomicU64,
    unfinished: AtomicUsize,
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
            tenants: vec![Tenant::default(); slots],
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
            cells: (0..slots).map(|_| Cell::default()).collect(),
        }
    }

    /// The block whose output is tapped, 0-based.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Gives `slot` to a new request.
    pub fn begin(&self, slot: u32, generation: u32, prompt_len: usize) {
        let mut stage = self.stage.write().expect("no task panicked");
        stage.tenants[slot as usize] = Tenant { generation, prompt_len: prompt_len as u32 };
        let mut posteriors = self.posteriors.lock().expect("no task panicked");
        posteriors.tracker.begin(slot as usize, generation);
    }

    /// Before the forward pass of `step`.
    pub fn start(&self, step: u64) {
        self.stage.write().expect("no task panicked").step = step;
        self.posteriors.lock().expect("no task panicked").ready = None;
    }

    /// The latest prediction for `slot`, if it is there.
    pub fn read(&self, slot: u32) -> Option<Reading> {
        self.cells[slot as usize].try_read()
    }

    /// When the step's predictions were all published; `None` if it had none or they are not.
    pub fn ready(&self) -> Option<Instant> {
        self.posteriors.lock().expect("no task panicked").ready
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

    /// Smooths and publishes every row of the step.
    fn finish(&self, stage: &Stage) {
        let rows = stage.rows.len();
        let bins = self.head.bins();
        let mut guard = self.posteriors.lock().expect("no task panicked");
        let Posteriors { tracker, probabilities, ready } = &mut *guard;
        let probabilities = &mut probabilities[..rows * bins];
        self.head.finish_rows(0..rows, &self.partials, probabilities);
        for (row, p) in stage.rows.iter().zip(probabilities.chunks_exact(bins)) {
            let slot = row.slot as usize;
            if let Some(estimate) = tracker.observe(slot, row.generation, row.generated, p) {
                self.cells[slot].publish(stage.step, &estimate);
            }
        }
        *ready = Some(Instant::now());
    }
}

impl TapSink for Forecast {
    fn publish(&self, batch: &Batch, hidden: &[f32]) {
        let rows = {
            let mut stage = self.stage.write().expect("no task panicked");
            stage.rows.clear();
            stage.activations.clear();
            for segment in &batch.segments {
                stage.take(segment, hidden, self.hidden);
            }
            stage.rows.len()
        };
        if rows == 0 {
            return;
        }
        let tasks = self.head.tasks(rows);
        self.unfinished.store(tasks, Ordering::Relaxed);
        self.claims.store((tasks as u64) << 32, Ordering::Release);
    }

    fn assist(&self) -> bool {
        let Some(task) = self.claim() else { return false };
        let stage = self.stage.read().expect("no task panicked");
        self.head.run_task(task, &stage.activations, stage.rows.len(), &self.partials);
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(&stage);
        }
        true
    }
}

impl Stage {
    /// Stages what is worth a prediction in one run: the prompt's mean where the run completes the
    /// prompt, and its last row where that is an output token's.
    fn take(&mut self, segment: &Segment, hidden: &[f32], width: usize) {
        let Tenant { generation, prompt_len } = self.tenants[segment.slot as usize];
        let first = segment.first_row as usize;
        let end = segment.start + segment.len;
        if segment.start < prompt_len {
            let prompt_rows = (end.min(prompt_len) - segment.start) as usize;
            let rows = &hidden[first * width..(first + prompt_rows) * width];
            self.add_prompt_rows(segment, rows, width);
            if end >= prompt_len {
                self.stage_prompt_mean(segment.slot, generation, prompt_len, width);
            }
        }
        if end > prompt_len && segment.logits {
            let last = first + segment.len as usize - 1;
            let generated = end - prompt_len;
            self.rows.push(StagedRow { slot: segment.slot, generation, generated });
            self.activations.extend_from_slice(&hidden[last * width..(last + 1) * width]);
        }
    }

    /// Adds `rows` to the slot's running sum; a run that begins at position 0 begins the sum anew.
    fn add_prompt_rows(&mut self, segment: &Segment, rows: &[f32], width: usize) {
        let slot = segment.slot as usize;
        let sum = &mut self.prompt_sums[slot * width..(slot + 1) * width];
        if segment.start == 0 {
            sum.fill(0.0);
        }
        for row in rows.chunks_exact(width) {
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }

    fn stage_prompt_mean(&mut self, slot: u32, generation: u32, prompt_len: u32, width: usize) {
        let first = slot as usize * width;
        let scale = 1.0 / prompt_len as f32;
        self.rows.push(StagedRow { slot, generation, generated: 0 });
        let sum = &self.prompt_sums[first..first + width];
        self.activations.extend(sum.iter().map(|value| value * scale));
    }
}
