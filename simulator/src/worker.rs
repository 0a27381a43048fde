//! One worker: a scheduler on its own virtual clock.
//!
//! [`Worker::step`] is the engine's step loop over a backend without steps in flight: take in what
//! was submitted, complete transfers, plan, let the step's time pass, pass on predictions, end what
//! is complete.

use std::collections::VecDeque;
use std::time::Duration;

use crate::job::Job;
use crate::run::JobOutcome;
use crate::simulation_error::SimulationError;
use crate::step_model::{StepModel, StepTime};
use crate::transfers::Transfers;
use trail_platform::delivery::Delivery;
use trail_scheduler::{
    BLOCK_TOKENS, BlockHash, Policy, Prediction, PrefillPace, PrefillWork, RequestIdx, Scheduler,
    SchedulerConfig, StepWork,
};

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// A batch ran, and time has passed.
    Ran,
    /// Nothing can run until a transfer completes.
    Transferring,
    /// There is no request.
    Idle,
}

/// Totals of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) finished: usize,
    pub(crate) tokens: u64,
    pub(crate) steps: u64,
    pub(crate) preemptions: u64,
    pub(crate) evictions: u64,
    pub(crate) swaps_out: u64,
    pub(crate) swaps_in: u64,
    pub(crate) recomputed_tokens: u64,
    pub(crate) cached_tokens: u64,
    /// Sum of KV blocks in use times nanoseconds.
    pub(crate) block_ns: f64,
    pub(crate) peak_blocks: u32,
    /// Sum of |predicted - true| remaining tokens, and the number of predictions.
    pub(crate) error: (f64, u64),
    /// Tokens generated, and time, when a request last waited.
    pub(crate) saturated: (u64, u64),
}

/// The request at a scheduler's index.
#[derive(Default)]
struct Live {
    /// Index of the job.
    job: usize,
    outcome: JobOutcome,
    delivery: Delivery,
    /// Refined predictions; filled when it is first scheduled.
    refined: Vec<f32>,
}

pub(crate) struct Worker {
    number: u32,
    scheduler: Scheduler,
    time: StepTime,
    pace: PrefillPace,
    transfers: Transfers,
    pub(crate) now_ns: u64,
    /// Jobs that have arrived and are not submitted yet.
    inbox: VecDeque<usize>,
    /// By request index.
    live: Vec<Live>,
    /// Requests whose last token came in the last step.
    ended: Vec<RequestIdx>,
    ended_in_last_step: usize,
    is_transferring: bool,
    /// Blocks of outputs that have a hash.
    output_blocks: u128,
    pub(crate) totals: Totals,
}

impl Worker {
    pub(crate) fn new(
        number: u32,
        scheduler: SchedulerConfig,
        model: &StepModel,
        max_gap: Duration,
        policy: Box<dyn Policy>,
    ) -> Result<Worker, SimulationError> {
        Ok(Worker {
            number,
            scheduler: Scheduler::new(scheduler, policy).map_err(SimulationError::Config)?,
            time: model.time,
            pace: model.time.prefill_pace(max_gap),
            transfers: Transfers::new(model.block_s),
            now_ns: 0,
            inbox: VecDeque::new(),
            live: Vec::new(),
            ended: Vec::with_capacity(scheduler.max_running as usize),
            ended_in_last_step: 0,
            is_transferring: false,
            output_blocks: 0,
            totals: Totals::default(),
        })
    }

    /// Gives the worker a job that has arrived.
    pub(crate) fn push(&mut self, job: usize) {
        self.inbox.push_back(job);
    }

    /// Requests queued and running at `ns`. A step that began before `ns` may have ended later: the
    /// requests that end with it count.
    pub(crate) fn load(&self, ns: u64) -> usize {
        let ending = if self.now_ns > ns { self.ended_in_last_step } else { 0 };
        self.inbox.len() + self.scheduler.live() + ending
    }

    /// Runs steps until the clock has reached `ns`; an idle worker's clock jumps there. Without a
    /// time: until no request is left.
    pub(crate) fn run_until(
        &mut self,
        ns: Option<u64>,
        jobs: &[Job],
        done: &mut [Option<JobOutcome>],
    ) -> Result<(), SimulationError> {
        while ns.is_none_or(|ns| self.now_ns < ns) {
            match self.step(jobs, done)? {
                Stepped::Ran => return Ok(()),
                Stepped::Transferring => {
                    let next_ns = self.transfers.next_ns().into_iter().chain(ns).min();
                    self.now_ns = self.now_ns.max(next_ns.unwrap_or(0));
                }
                Stepped::Idle if self.scheduler.live() > 0 => return Err(SimulationError::Stalled),
                Stepped::Idle => {
                    self.now_ns = self.now_ns.max(ns.unwrap_or(0));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// True if requests are queued or running.
    pub(crate) fn is_busy(&self) -> bool {
        !self.inbox.is_empty() || self.scheduler.live() > 0
    }

    /// One iteration of the step loop.
    fn step(
        &mut self,
        jobs: &[Job],
        done: &mut [Option<JobOutcome>],
    ) -> Result<Stepped, SimulationError> {
        let submitted = self.submit(jobs)?;
        let transferred = self.transfers.complete(self.now_ns, &mut self.scheduler);
        if !submitted && !transferred && self.is_transferring {
            // Planning again would give the same plan and wrongly count skipped requests.
            return Ok(Stepped::Transferring);
        }
        self.plan();
        let ran = !self.scheduler.last_plan().rows.is_empty();
        if ran {
            self.execute(jobs);
            self.finish_ended(jobs, done);
        }
        self.is_transferring = !ran && self.scheduler.moving() > 0;
        Ok(match (ran, self.is_transferring) {
            (true, _) => Stepped::Ran,
            (false, true) => Stepped::Transferring,
            (false, false) => Stepped::Idle,
        })
    }

    /// Submits the jobs of the inbox. Returns whether there were any.
    fn submit(&mut self, jobs: &[Job]) -> Result<bool, SimulationError> {
        let any = !self.inbox.is_empty();
        while let Some(index) = self.inbox.pop_front() {
            let job = &jobs[index];
            // The engine's time of arrival is that of its clock, which is past the job's own.
            let request = job.to_scheduler(self.now_s());
            let idx = self
                .scheduler
                .submit(request)
                .map_err(|refusal| SimulationError::Refused { id: job.id, refusal })?;
            if idx.index() >= self.live.len() {
                self.live.resize_with(idx.index() + 1, Live::default);
            }
            let live = &mut self.live[idx.index()];
            live.job = index;
            live.outcome = JobOutcome::begun(job, self.number);
            live.delivery = Delivery::default();
            live.refined.clear();
            for &hash in &*job.block_hashes {
                self.scheduler.push_block_hash(idx, hash);
            }
        }
        Ok(any)
    }

    fn now_s(&self) -> f64 {
        self.now_ns as f64 * 1e-9
    }

    /// Plans the next step and starts its transfers.
    fn plan(&mut self) {
        let now_s = self.now_s();
        self.scheduler.limit_prefill(self.pace.limit());
        self.scheduler.plan(self.totals.steps + 1, now_s);
        let plan = self.scheduler.last_plan();
        self.transfers.start(plan, &self.scheduler, self.now_ns);
        let totals = &mut self.totals;
        totals.preemptions += plan.preempted.len() as u64;
        totals.evictions += plan.evicted.len() as u64;
        totals.swaps_out += plan.swap_out.len() as u64;
        totals.swaps_in += plan.swap_in.len() as u64;
        totals.recomputed_tokens += u64::from(plan.recomputed_tokens);
        totals.cached_tokens += u64::from(plan.prompt_hits);
        totals.peak_blocks = totals.peak_blocks.max(self.scheduler.blocks_used());
    }

    /// Lets the planned step take its time, and passes on its tokens and predictions.
    fn execute(&mut self, jobs: &[Job]) {
        let (mut work, mut prefill) = (StepWork::default(), PrefillWork::default());
        for row in &self.scheduler.last_plan().rows {
            work.add(row.start, row.len, row.sample);
            prefill.add(row.start, row.len);
        }
        self.totals.steps += 1;
        let ns = self.time.ns(&work);
        self.scheduler.advance();
        self.totals.block_ns += f64::from(self.scheduler.blocks_used()) * ns as f64;
        self.now_ns += ns;
        self.pace.record(prefill, ns);
        for at in 0..self.scheduler.last_plan().rows.len() {
            let row = self.scheduler.last_plan().rows[at];
            if row.sample {
                self.sampled(row.idx, jobs);
            }
        }
    }

    /// Hashes the block that the request's last token fills, if it does: no other request has it.
    fn hash_output(&mut self, idx: RequestIdx) {
        let fills = self.scheduler.state(idx).tokens().is_multiple_of(BLOCK_TOKENS);
        if fills && self.scheduler.config().cached_blocks > 0 {
            self.output_blocks += 1;
            let hash = BlockHash(1 << 127 | self.output_blocks);
            self.scheduler.push_block_hash(idx, hash);
        }
    }

    /// Accounts for one token of the request at `idx`, and passes its prediction on.
    fn sampled(&mut self, idx: RequestIdx, jobs: &[Job]) {
        self.hash_output(idx);
        let state = self.scheduler.state(idx);
        let (generated, generation) = (state.generated, state.generation);
        let live = &mut self.live[idx.index()];
        let job = &jobs[live.job];
        if generated == 1 {
            let ns = self.now_ns.saturating_sub(job.arrival_ns);
            live.outcome.ttft_s = ns as f64 * 1e-9;
            job.refined.fill(job.output_tokens, &mut live.refined);
        }
        live.delivery.token(self.now_ns);
        self.totals.tokens += 1;
        if generated >= job.output_tokens {
            self.ended.push(idx);
        }
        if let Some(&remaining) = live.refined.get(generated as usize - 1) {
            let truth = f64::from(job.output_tokens - (generated - 1));
            let (sum, count) = &mut self.totals.error;
            (*sum, *count) = (*sum + (f64::from(remaining) - truth).abs(), *count + 1);
            let (p10, p50, p90, step) = (remaining, remaining, remaining, self.totals.steps);
            let prediction = Prediction { remaining, p10, p50, p90, step, generation };
            self.scheduler.predict(idx, prediction);
        }
    }

    /// Ends the requests that are complete, last first like the engine.
    fn finish_ended(&mut self, jobs: &[Job], done: &mut [Option<JobOutcome>]) {
        self.ended_in_last_step = self.ended.len();
        self.totals.finished += self.ended.len();
        while let Some(idx) = self.ended.pop() {
            let state = self.scheduler.state(idx);
            let Live { job, outcome, delivery, .. } = &mut self.live[idx.index()];
            let latency_ns = delivery.last_ns().saturating_sub(jobs[*job].arrival_ns);
            done[*job] = Some(JobOutcome {
                latency_s: latency_ns as f64 * 1e-9,
                longest_gap_s: delivery.longest_gap_s(),
                smooth_s: delivery.smooth_s(),
                hold_back_s: delivery.hold_back_s(),
                preemptions: state.preemptions,
                evictions: state.evictions,
                swaps: state.swaps,
                ..*outcome
            });
            self.scheduler.finish(idx);
        }
        // As the engine counts: a waiting request is submitted and not in the batch.
        if self.scheduler.live() > self.scheduler.running() {
            self.totals.saturated = (self.totals.tokens, self.now_ns);
        }
    }
}
