//! A simulation: workers behind a balancer, and the jobs in order of arrival.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::job::Job;
use crate::run::{JobOutcome, SimulationRun};
use crate::simulation_error::{MAX_WORKERS, SimulationError};
use crate::step_model::StepModel;
use crate::worker::Worker;
use trail_scheduler::{Policy, SchedulerConfig};

/// Steps between two reports of progress.
const REPORT_STEPS: u64 = 1024;

/// Sizes of the scheduler, the time of steps, and the number of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Sizes and bounds of each worker's scheduler.
    pub scheduler: SchedulerConfig,
    /// Time of steps and of transfers.
    pub model: StepModel,
    /// Longest gap between two tokens that prefill may cause; zero for no bound.
    pub max_gap: Duration,
    /// Workers, each with its own scheduler and model. A job goes to the worker with the
    /// fewest jobs, queued and running, on its arrival (ELIS, section 4.1); ties to the first.
    pub workers: u32,
}

/// Progress of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Jobs that have arrived.
    pub arrived: usize,
    /// Requests answered.
    pub finished: usize,
    /// Steps of all workers.
    pub steps: u64,
}

impl Simulation {
    /// Most workers.
    pub const MAX_WORKERS: u32 = MAX_WORKERS;

    /// One worker without a bound on gaps.
    pub fn new(scheduler: SchedulerConfig, model: StepModel) -> Simulation {
        Simulation { scheduler, model, max_gap: Duration::ZERO, workers: 1 }
    }

    /// Runs `jobs`, in order of arrival, under the policy that `policy` makes for each worker.
    /// `watch` is called now and then, and stops the run by [`ControlFlow::Break`].
    pub fn run(
        &self,
        policy: &dyn Fn() -> Box<dyn Policy>,
        jobs: &[Job],
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<SimulationRun, SimulationError> {
        if !(1..=Simulation::MAX_WORKERS).contains(&self.workers) {
            return Err(SimulationError::Workers(self.workers));
        }
        if let Some(pair) = jobs.windows(2).find(|pair| pair[1].arrival_ns < pair[0].arrival_ns) {
            return Err(SimulationError::Unsorted { id: pair[1].id });
        }
        let new = |number| Worker::new(number, self.scheduler, &self.model, self.max_gap, policy());
        let mut cluster = Cluster {
            workers: (0..self.workers).map(new).collect::<Result<_, _>>()?,
            done: vec![None; jobs.len()],
            reported: 0,
        };
        let completed = cluster.run(jobs, watch)?;
        Ok(cluster.into_run(jobs, !completed))
    }
}

/// The workers of a run.
struct Cluster {
    workers: Vec<Worker>,
    /// By job.
    done: Vec<Option<JobOutcome>>,
    /// Steps at the last report of progress.
    reported: u64,
}

impl Cluster {
    /// Runs all jobs. Returns false if `watch` stopped the run.
    fn run(
        &mut self,
        jobs: &[Job],
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<bool, SimulationError> {
        for (index, job) in jobs.iter().enumerate() {
            let arrival_ns = job.arrival_ns;
            while let Some(at) = self.workers.iter().position(|w| w.now_ns < arrival_ns) {
                self.workers[at].run_until(Some(arrival_ns), jobs, &mut self.done)?;
                if self.report(index, watch).is_break() {
                    return Ok(false);
                }
            }
            let least = self.workers.iter_mut().min_by_key(|worker| worker.load(arrival_ns));
            least.into_iter().for_each(|worker| worker.push(index));
        }
        while let Some(at) = self.workers.iter().position(Worker::is_busy) {
            self.workers[at].run_until(None, jobs, &mut self.done)?;
            if self.report(jobs.len(), watch).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn report(
        &mut self,
        arrived: usize,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.reported += 1;
        if !self.reported.is_multiple_of(REPORT_STEPS) {
            return ControlFlow::Continue(());
        }
        let finished = self.workers.iter().map(|worker| worker.totals.finished).sum();
        let steps = self.workers.iter().map(|worker| worker.totals.steps).sum();
        watch(Progress { arrived, finished, steps })
    }

    fn into_run(self, jobs: &[Job], interrupted: bool) -> SimulationRun {
        let first_ns = jobs.first().map_or(0, |job| job.arrival_ns);
        let end_ns = self.workers.iter().map(|worker| worker.now_ns).max().unwrap_or(0);
        let span_ns = end_ns.saturating_sub(first_ns).max(1) as f64;
        let mut run =
            SimulationRun { interrupted, makespan_s: span_ns * 1e-9, ..SimulationRun::default() };
        let (mut block_ns, mut error) = (0.0, (0.0, 0));
        for Worker { totals, now_ns, .. } in &self.workers {
            run.tokens += totals.tokens;
            run.steps += totals.steps;
            run.preemptions += totals.preemptions;
            run.evictions += totals.evictions;
            run.swaps_out += totals.swaps_out;
            run.swaps_in += totals.swaps_in;
            run.recomputed_tokens += totals.recomputed_tokens;
            run.cached_tokens += totals.cached_tokens;
            run.peak_kv_blocks = run.peak_kv_blocks.max(totals.peak_blocks);
            block_ns += totals.block_ns;
            error = (error.0 + totals.error.0, error.1 + totals.error.1);
            let (tokens, ns) = match totals.saturated {
                (0, _) | (_, 0) => (totals.tokens, (*now_ns).max(1)),
                saturated => saturated,
            };
            run.saturated_tokens_per_s += tokens as f64 / (ns as f64 * 1e-9);
        }
        run.mean_kv_blocks = block_ns / span_ns;
        run.prediction_mae = (error.1 > 0).then(|| error.0 / error.1 as f64);
        run.outcomes = self.done.into_iter().flatten().collect();
        run
    }
}
